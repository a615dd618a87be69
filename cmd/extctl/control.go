package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/mesh"
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
	var out []string
	for _, i := range e.State.Instances {
		if i.Bridge != "" && (f.bridge == "" || f.bridge == i.Bridge) && (f.instance == "" || f.instance == i.Instance) {
			out = append(out, i.Bridge)
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) == 0 {
		return nil, fail(exitNotFound, "no bridge runs such an instance of %s; a service on NATS is its owner's to operate", id)
	}
	return out, nil
}

// operate sends a verb about an extension to every bridge that runs it.
func (s *session) operate(ctx context.Context, f bridgeFlags, method, id string, lines int) ([]controlJSON, error) {
	c, err := s.catalog(ctx)
	if err != nil {
		return nil, err
	}
	bridges, err := f.bridgesOf(c, id)
	if err != nil {
		return nil, err
	}
	params := map[string]any{"id": id}
	if f.instance != "" {
		params["instance"] = f.instance
	}
	if lines > 0 {
		params["lines"] = lines
	}
	var out []controlJSON
	var failed []error
	for _, b := range bridges {
		result, err := s.ask(ctx, s.prefix.Control(b), "bridge "+b, method, params)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		out = append(out, controlJSON{b, result})
	}
	return out, errors.Join(failed...)
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
				answers, err := s.operate(ctx, f, method, args[0], 0)
				if err != nil && len(answers) == 0 {
					return err
				}
				return errors.Join(s.printAnswers(answers, done), err)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	f.add(cmd)
	return cmd
}

func (s *session) printAnswers(answers []controlJSON, done string) error {
	if s.json {
		return s.printJSON(struct {
			header
			Bridges []controlJSON `json:"bridges"`
		}{Bridges: answers})
	}
	for _, a := range answers {
		var r struct {
			Instances []string `json:"instances"`
		}
		if err := json.Unmarshal(a.Result, &r); err != nil {
			return fmt.Errorf("bridge %s: %w", a.Bridge, err)
		}
		fmt.Fprintf(s.stdout, "%s: %s %s\n", clean(a.Bridge), done, plural(len(r.Instances), "instance"))
	}
	return nil
}
