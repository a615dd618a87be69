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

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// controlJSON is a bridge's answer to an operator's verb.
type controlJSON struct {
	Bridge string          `json:"bridge"`
	Result json.RawMessage `json:"result"`
}

// bridgeFlags choose among the bridges that run an extension.
type bridgeFlags struct {
	bridge, instance string
}

func (f *bridgeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.bridge, "bridge", "", "only on the bridge `NAME`")
	cmd.Flags().StringVar(&f.instance, "instance", "", "only the `INSTANCE`")
}

// bridgesOf lists the bridges that run instances of an extension, sorted.
func (f bridgeFlags) bridgesOf(c *mesh.Catalog, id string) ([]string, error) {
	e, err := extension(c, id)
	if err != nil {
		return nil, err
	}
	var out, others []string
	for _, i := range e.State.Instances {
		switch {
		case i.Bridge == "":
		case (f.bridge == "" || f.bridge == i.Bridge) && (f.instance == "" || f.instance == i.Instance):
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
		return nil, fail(exitNotFound, "there is no such instance of %s; there is %s", id, strings.Join(others[:min(len(others), 5)], ", "))
	}
	return nil, fail(exitNotFound, "no bridge runs such an instance of %s; a service on NATS is its owner's to operate", id)
}

// answer is what a bridge says to a verb, or why it says nothing.
type answer[T any] struct {
	controlJSON
	said T // the result
	err  error
}

// operate sends a verb about an extension to all bridges that run it at once: one that hangs takes no time from the
// others. Each has as long as limit says, or ctx where that is 0. What it returns is sorted by bridge, whoever was first;
// where nobody did what was asked, it is an error.
func operate[T any](ctx context.Context, s *session, f bridgeFlags, method, id string, lines int, limit time.Duration) ([]answer[T], failures, error) {
	c, err := s.catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	bridges, err := f.bridgesOf(c, id)
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
	answers := make([]answer[T], len(bridges))
	var wg sync.WaitGroup
	for n, b := range bridges {
		wg.Go(func() { answers[n] = askBridge[T](ctx, s, b, method, params) }) // ends with ctx
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
		return nil, nil, errors.Join(errs...)
	}
	return answers, failed, nil
}

func askBridge[T any](ctx context.Context, s *session, bridge, method string, params any) (a answer[T]) {
	a.Bridge = bridge
	result, err := s.ask(ctx, s.prefix.Control(bridge), "bridge "+bridge, method, params)
	own := as[*rpc.Error](err)
	if err == nil {
		a.Result = result
		err = json.Unmarshal(result, &a.said)
		own = err != nil
	}
	switch {
	case errors.Is(err, rpc.CodeInvalidParams): // the catalog knows the instance, and the bridge does not run it any more
		err = fail(exitNotFound, "%w", err)
	case own: // which does not say whose it is
		err = fmt.Errorf("bridge %s: %w", bridge, err)
	}
	a.err = err
	return a
}

// failedJSON is a bridge that did not do what others did.
type failedJSON struct {
	Bridge string    `json:"bridge"`
	Error  faultJSON `json:"error"`

	code int
	err  error
}

// failures are those bridges, sorted.
type failures []failedJSON

func (s *session) failureOf(bridge string, err error) failedJSON {
	code := exitCode(err)
	return failedJSON{Bridge: bridge, Error: s.fault(code, err), code: code, err: err}
}

// tell says on stderr what failed.
func (f failures) tell(a *app) {
	for _, b := range f {
		a.tell(b.code, b.err)
	}
}

// exit ends extctl, which has told them, with the code of the first.
func (f failures) exit() error {
	if len(f) == 0 {
		return nil
	}
	return silentError(f[0].code)
}

// operated is what a bridge says of the instances that a verb was about.
type operated struct {
	Instances []string `json:"instances"`
}

// operateCmd is a verb that asks bridges to do something to an extension's instances.
func (a *app) operateCmd(method, short, done string) *cobra.Command {
	var f bridgeFlags
	cmd := &cobra.Command{
		Use:   method + " ID",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withMesh(cmd, askTimeout, func(ctx context.Context, s *session) error {
				answers, failed, err := operate[operated](ctx, s, f, method, args[0], 0, 0)
				if err != nil {
					return err
				}
				return cmp.Or(s.printOperated(answers, failed, done), failed.exit())
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	f.add(cmd)
	return cmd
}

func (s *session) printOperated(answers []answer[operated], failed failures, done string) error {
	if s.json {
		out := struct {
			header
			Bridges []controlJSON `json:"bridges"`
			Failed  failures      `json:"failed,omitempty"`
		}{Failed: failed}
		for _, a := range answers {
			out.Bridges = append(out.Bridges, a.controlJSON)
		}
		return s.printJSON(out)
	}
	for _, a := range answers {
		fmt.Fprintf(s.stdout, "%s: %s %s\n", clean(a.Bridge), done, plural(len(a.said.Instances), "instance"))
	}
	failed.tell(s.app)
	return nil
}
