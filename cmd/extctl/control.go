package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
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

// operate sends a control request to all bridges that run an extension. limit is the time limit of each request; 0 means
// that of ctx.
func operate[T any](ctx context.Context, s *session, f bridgeFlags, method, id string, lines int, limit time.Duration) ([]answer[T], failures, error) {
	_, e, err := s.extension(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if f, err = f.resolve(ctx, s, e); err != nil {
		return nil, nil, err
	}
	bridges, err := f.bridgesOf(e)
	if err != nil {
		return nil, nil, err
	}
	params := map[string]any{"id": id}
	if f.instance != "" {
		params["instance"] = f.instance
	}
	if lines > 0 {
		params["lines"] = lines
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return askBridges[T](ctx, s, bridges, method, params)
}

// askBridges sends a control request to bridges, in parallel, so that one that hangs does not delay the others. The results
// are in the order of the bridges. If every bridge fails, askBridges returns an error.
func askBridges[T any](ctx context.Context, s *session, bridges []string, method string, params any) ([]answer[T], failures, error) {
	answers := make([]answer[T], len(bridges))
	var wg sync.WaitGroup
	for n, b := range bridges {
		wg.Go(func() { answers[n] = requestBridge[T](ctx, s, b, method, params) }) // ends with ctx
	}
	wg.Wait()
	var failed failures
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			failed, errs = append(failed, s.failureOf(a.Bridge, a.err)), append(errs, a.err)
		}
	}
	answers = slices.DeleteFunc(answers, func(a answer[T]) bool { return a.err != nil })
	if len(answers) == 0 {
		return nil, nil, s.allFailed(bridges, errs)
	}
	return answers, failed, nil
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

// report prints the errors on stderr and returns the exit code.
func (f failures) report(a *app) error {
	for _, b := range f {
		a.printError(b.code, b.err)
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

// allFailed is the error if the request to every bridge failed. Forty bridges that fail for the same reason are one line.
func (s *session) allFailed(bridges []string, errs []error) error {
	type group struct {
		err     error // of the first bridge
		bridges []string
	}
	var order []string
	groups := map[string]*group{}
	for n, err := range errs {
		reason := strings.ReplaceAll(err.Error(), bridges[n], "BRIDGE")
		if errors.Is(err, nats.ErrPermissionViolation) {
			reason = "denied"
		}
		if groups[reason] == nil {
			groups[reason], order = &group{err: err}, append(order, reason)
		}
		groups[reason].bridges = append(groups[reason].bridges, bridges[n])
	}
	var out []error
	for _, reason := range order {
		g := groups[reason]
		switch n := len(g.bridges); {
		case n == 1:
			out = append(out, g.err)
		case reason == "denied":
			text := fmt.Sprintf("all %d bridges: NATS does not allow this user to send requests to bridges (%s)", n, s.prefix.Control("*"))
			if n < len(bridges) {
				text = strings.Replace(text, "all ", "", 1)
			}
			out = append(out, &reworded{text, g.err})
		default:
			out = append(out, fmt.Errorf("%w; the same for %s", g.err, moreBridges(g.bridges[1:])))
		}
	}
	return errors.Join(out...)
}

// moreBridges names bridges: the names of a few, the number of many.
func moreBridges(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%d other bridges", len(names))
	}
	return strings.Join(names, ", ")
}
