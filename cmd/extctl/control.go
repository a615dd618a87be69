package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// controlJSON is a bridge's reply to a control request.
type controlJSON struct {
	Bridge string          `json:"bridge"`
	Result json.RawMessage `json:"result"`
}

// bridgeFlags select among the bridges that run an extension.
type bridgeFlags struct {
	bridge, instance string
}

func (f *bridgeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.bridge, "bridge", "", "only on the bridge `NAME`")
	cmd.Flags().StringVar(&f.instance, "instance", "", "only the `INSTANCE`: bridge/N as logs prints it, or the beginning or the end of its name")
}

// selects reports whether the flags select an instance.
func (f bridgeFlags) selects(i wire.InstanceState) bool {
	return i.Bridge != "" && (f.bridge == "" || f.bridge == i.Bridge) && (f.instance == "" || f.instance == i.Instance)
}

// choose returns an extension and the bridges of its selected instances. The flags then have the whole name of the instance.
func (f *bridgeFlags) choose(ctx context.Context, s *session, id string) (e mesh.Extension, bridges []string, err error) {
	if _, e, err = s.extension(ctx, id); err != nil {
		return e, nil, err
	}
	if err = f.resolve(ctx, s, e); err != nil {
		return e, nil, err
	}
	bridges, err = f.bridgesOf(e)
	if len(bridges) > 1 {
		if c, err := s.load(ctx, mesh.CatalogOptions{}, wire.KindHost); err == nil { // without it, the requests show whether they are there
			bridges = s.reachable(bridges, c.Hosts())
		}
	}
	return e, bridges, err
}

// reachable leaves out the bridges that are lost, with a note for each, unless all are.
func (s *session) reachable(bridges []string, hosts []mesh.Host) []string {
	var running, lost []string
	for _, name := range bridges {
		if slices.ContainsFunc(hosts, func(h mesh.Host) bool { return h.Bridge == name && h.State == heartbeat.Lost }) {
			lost = append(lost, name)
		} else {
			running = append(running, name)
		}
	}
	if len(running) == 0 {
		return lost
	}
	for _, name := range lost {
		s.note("%s is lost; nothing runs there", terminal.Clean(name))
	}
	return running
}

// params are the params of a control request for the selected instances of an extension, after choose.
func (f bridgeFlags) params(id string) map[string]any {
	params := map[string]any{"id": id}
	if f.instance != "" {
		params["instance"] = f.instance
	}
	return params
}

// bridgesOf lists the bridges that run instances of an extension, sorted.
func (f bridgeFlags) bridgesOf(e mesh.Extension) ([]string, error) {
	var out, others []string
	for _, i := range e.State.Instances {
		switch {
		case i.Bridge == "":
		case f.selects(i):
			out = append(out, i.Bridge)
		default:
			others = append(others, i.Instance+" on bridge "+i.Bridge)
		}
	}
	slices.Sort(out)
	slices.Sort(others)
	switch out = slices.Compact(out); {
	case len(out) > 0:
		return out, nil
	case len(others) > 0:
		return nil, fail(exitNotFound, "no such instance of %s; its instances are %s", e.ID, strings.Join(others[:min(len(others), 5)], ", "))
	}
	return nil, fail(exitNotFound, "no bridge runs an instance of %s (services on NATS are managed by their owner)", e.ID)
}

// answer is a bridge's reply to a control request, or the error of the request.
type answer[T any] struct {
	controlJSON
	parsed T // Result, decoded
	err    error
}

// askBridges sends a control request to bridges, in parallel, so that one that hangs does not delay the others. The results
// are in the order of the bridges. If every bridge fails, askBridges returns an error.
func askBridges[T any](ctx context.Context, s *session, bridges []string, method string, params any) ([]answer[T], failures, error) {
	answers, failed := askEach[T](ctx, s, bridges, method, params)
	if len(answers) == 0 {
		return nil, nil, allFailed(failed)
	}
	return answers, failed, nil
}

// askEach is askBridges without an error if all fail.
func askEach[T any](ctx context.Context, s *session, bridges []string, method string, params any) ([]answer[T], failures) {
	answers := make([]answer[T], len(bridges))
	var wg sync.WaitGroup
	for n, b := range bridges {
		wg.Go(func() { answers[n] = requestBridge[T](ctx, s, b, method, params) }) // ends with ctx
	}
	wg.Wait()
	var failed failures
	for _, a := range answers {
		if a.err != nil {
			failed = append(failed, s.failureOf(a.Bridge, a.err))
		}
	}
	return slices.DeleteFunc(answers, func(a answer[T]) bool { return a.err != nil }), failed
}

func requestBridge[T any](ctx context.Context, s *session, bridge, method string, params any) (a answer[T]) {
	a.Bridge = bridge
	result, err := s.request(ctx, s.prefix.Control(bridge), "bridge "+bridge, method, params)
	unnamed := as[*rpc.Error](err) // the error does not name the bridge
	if err == nil {
		a.Result = result
		err = json.Unmarshal(result, &a.parsed)
		unnamed = err != nil
	}
	switch {
	case errors.Is(err, rpc.CodeInvalidParams): // the bridge no longer runs the instance that the catalog lists
		err = fail(exitNotFound, "%w", err)
	case unnamed:
		err = fmt.Errorf("bridge %s: %w", bridge, err)
	}
	a.err = err
	return a
}

// failedJSON is a bridge with a failed request, if others succeeded.
type failedJSON struct {
	Bridge string    `json:"bridge"`
	Error  faultJSON `json:"error"`

	code int
	err  error
}

// failures are the failed bridges, sorted.
type failures []failedJSON

func (s *session) failureOf(bridge string, err error) failedJSON {
	code := exitCode(err)
	return failedJSON{Bridge: bridge, Error: s.fault(code, err), code: code, err: err}
}

// report prints the errors on stderr, except that the user has ended the command, and returns the exit code.
func (f failures) report(a *app) error {
	for _, b := range f {
		if !errors.Is(b.err, context.Canceled) {
			a.printError(b.code, b.err)
		}
	}
	return f.exit()
}

// exit returns the exit code of the first failure.
func (f failures) exit() error {
	if len(f) == 0 {
		return nil
	}
	return silentError(f[0].code)
}

// operated is a bridge's result of restart and drain.
type operated struct {
	Instances []string `json:"instances"`
}

func printOperated(s *session, answers []answer[operated], failed failures, done string) error {
	if s.json {
		return printBridges(s, controls(answers), failed)
	}
	for _, a := range answers {
		fmt.Fprintf(s.stdout, "%s: %s %s\n", terminal.Clean(a.Bridge), done, words.Plural(len(a.parsed.Instances), "instance"))
	}
	return failed.report(s.app)
}

// operatedOn groups instances by their bridges, in the form of the bridges' results.
func operatedOn(spots []spot) []controlJSON {
	byBridge := map[string][]string{}
	for _, p := range spots {
		byBridge[p.bridge] = append(byBridge[p.bridge], p.instance)
	}
	out := []controlJSON{}
	for _, b := range slices.Sorted(maps.Keys(byBridge)) {
		result, err := json.Marshal(operated{byBridge[b]})
		if err != nil { // strings can always be encoded
			panic(err)
		}
		out = append(out, controlJSON{b, result})
	}
	return out
}

// controls are the replies as they are.
func controls[T any](answers []answer[T]) []controlJSON {
	out := []controlJSON{}
	for _, a := range answers {
		out = append(out, a.controlJSON)
	}
	return out
}

// printBridges prints the results of control requests with --json. The error has the exit code of the first failure.
func printBridges(s *session, bridges []controlJSON, failed failures) error {
	return cmp.Or(s.printJSON(struct {
		header
		Bridges []controlJSON `json:"bridges"`
		Failed  failures      `json:"failed,omitempty"`
	}{Bridges: bridges, Failed: failed}), failed.exit())
}

// allFailed is the error if the request to every bridge failed: that of the first one, and the names of the others. They usually fail
// for the same reason.
func allFailed(failed failures) error {
	if len(failed) == 0 {
		return nil
	}
	var others []string
	for _, f := range failed[1:] {
		others = append(others, f.Bridge)
	}
	if len(others) == 0 {
		return failed[0].err
	}
	return fmt.Errorf("%w; requests to %s failed, too", failed[0].err, words.Some(others, 3))
}

// spot is an instance as its bridge reports it.
type spot struct {
	id, instance, bridge string
	number               int // among the instances of the extension on its bridge, from 1, as in the lines of logs
	state                heartbeat.State
	reason               string
}

// name is how people refer to the instance: bridge/N.
func (p spot) name() string { return p.bridge + "/" + strconv.Itoa(p.number) }

// spotsOf lists the instances in a bridge's status.
func spotsOf(s bridge.Status, bridge string) (out []spot) {
	numbers := map[string]int{}
	for _, i := range s.Instances {
		numbers[i.ID]++
		out = append(out, spot{i.ID, i.Instance, bridge, numbers[i.ID], i.State, i.Reason})
	}
	return out
}

// spotsOn requests from bridges their instances of an extension and its members; an empty id means all extensions.
func spotsOn(ctx context.Context, s *session, bridges []string, id string) ([]spot, failures, error) {
	var params any // an older bridge accepts absent params, but no empty id
	if id != "" {
		params = map[string]string{"id": id}
	}
	answers, failed, err := askBridges[bridge.Status](ctx, s, bridges, "status", params)
	var out []spot
	for _, a := range answers {
		out = append(out, spotsOf(a.parsed, a.Bridge)...)
	}
	return out, failed, err
}

// stateOf requests from a bridge the present state of one instance.
func stateOf(ctx context.Context, s *session, p spot) (spot, error) {
	a := requestBridge[bridge.Status](ctx, s, p.bridge, "status", map[string]string{"id": p.id, "instance": p.instance})
	if a.err != nil {
		return p, a.err
	}
	for _, i := range a.parsed.Instances {
		if i.Instance == p.instance {
			p.state, p.reason = i.State, i.Reason
			return p, nil
		}
	}
	return p, fail(exitNotFound, "bridge %s no longer runs it", p.bridge)
}

// resolve replaces the instance that the user named by its whole name. The names of the instances of one process begin with
// the same characters.
func (f *bridgeFlags) resolve(ctx context.Context, s *session, e mesh.Extension) error {
	if f.instance == "" {
		return nil
	}
	var found []wire.InstanceState
	for _, i := range e.State.Instances {
		if i.Instance == f.instance {
			return nil
		}
		if (f.bridge == "" || f.bridge == i.Bridge) && (strings.HasPrefix(i.Instance, f.instance) || strings.HasSuffix(i.Instance, f.instance)) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		f.instance = found[0].Instance
	case len(found) > 1:
		return fail(exitAmbiguous, "%d instances of %s have a name that begins or ends with %s; give its bridge and number, such as %s/1",
			len(found), e.ID, f.instance, found[0].Bridge)
	case strings.Contains(f.instance, "/"):
		return f.resolveNumber(ctx, s, e)
	}
	return nil // bridgesOf reports that there is no such instance
}

// resolveNumber resolves bridge/N.
func (f *bridgeFlags) resolveNumber(ctx context.Context, s *session, e mesh.Extension) error {
	name, number, _ := strings.Cut(f.instance, "/")
	if n, err := strconv.Atoi(number); err != nil || n < 1 {
		return usage("--instance %q: want BRIDGE/N with a number from 1, or a part of the instance's name", f.instance)
	}
	on := bridgeFlags{bridge: name}
	bridges, err := on.bridgesOf(e)
	if err != nil || f.bridge != "" && f.bridge != name {
		return errors.Join(err, fail(exitNotFound, "bridge %s runs no instance of %s", name, e.ID))
	}
	spots, _, err := spotsOn(ctx, s, bridges, e.ID)
	if err != nil {
		return err
	}
	have := 0
	for _, p := range spots {
		if p.id != e.ID {
			continue
		}
		if have = p.number; p.name() == f.instance {
			f.instance = p.instance
			return nil
		}
	}
	return fail(exitNotFound, "bridge %s runs %s of %s, so there is no %s", name, words.Plural(have, "instance"), e.ID, fmt.Sprintf("%q", f.instance))
}
