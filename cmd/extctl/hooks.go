package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// hookJSON is one hook of one extension.
type hookJSON struct {
	Name      string `json:"name"`
	Extension string `json:"extension"`
	Priority  int32  `json:"priority"`
	Available bool   `json:"available"`
}

func hooksCmd(a *app) *cobra.Command {
	return a.catalogVerb("hooks", "List the hooks and the extensions that offer them", []string{wire.KindSpec, wire.KindState}, func(c *mesh.Catalog) listing {
		hooks := []hookJSON{}
		for _, e := range c.All() {
			for _, h := range e.Spec.Hooks {
				hooks = append(hooks, hookJSON{h, e.ID, e.Spec.Priority, e.State.Available})
			}
		}
		slices.SortStableFunc(hooks, func(a, b hookJSON) int { return strings.Compare(a.Name, b.Name) })
		return listing{name: "hooks", list: hooks, empty: "no extension offers a hook", tables: func() []*terminal.Table {
			t := a.newTable("HOOK", "EXTENSION", "STATE")
			for _, h := range hooks {
				e, _ := c.Get(h.Extension)
				t.Add(h.Name, h.Extension, string(e.State.State))
			}
			return []*terminal.Table{t}
		}}
	})
}

func hookCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Fire a hook manually",
	}
	cmd.AddCommand(hookFireCmd(a))
	return cmd
}

func hookFireCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "fire NAME [JSON | key=value… | @file | -]",
		Short: "Send an event to every extension with a hook, and print the resulting event",
		Long: `Send an event to every extension that offers the hook, lowest priority first, as an agent would, and print
the event with all overrides merged. If an extension aborts a before_* hook, its id and its reason go to stderr and
the exit code is 12.`,
		Example: `  extctl hook fire before_message text='my card is 4111 1111'`,
		Args:    cobra.MinimumNArgs(1),
		RunE: a.withStdin(a.onMesh(callTimeout, func(ctx context.Context, s *session, args []string) error {
			event, err := toolargs.Parse(args[1:], nil, s.stdin)
			if err != nil {
				return daemon.UsageError{Err: err}
			}
			c, err := s.catalog(ctx)
			if err != nil {
				return err
			}
			if !s.json {
				noteUnknownHook(s, c, args[0])
			}
			fired, err := mesh.NewClient(s.nc, mesh.ClientOptions{Prefix: string(s.prefix), Catalog: c}).Fire(ctx, args[0], event)
			if err != nil {
				return err
			}
			return printFired(s, fired)
		})),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return completeHooks(a, cmd, args)
		},
	}
}

// noteUnknownHook prints a note if no extension offers the hook. That is not an error, but often a typing mistake.
func noteUnknownHook(s *session, c *mesh.Catalog, name string) {
	var known []string
	for _, e := range c.All() {
		known = append(known, e.Spec.Hooks...)
	}
	if slices.Contains(known, name) {
		return
	}
	slices.Sort(known)
	note := fmt.Sprintf("no extension offers the hook %q", name)
	if near := nearest.Words(name, slices.Compact(known)); len(near) > 0 {
		note += "; did you mean " + words.Or(near) + "?"
	}
	fmt.Fprintln(s.stderr, "extctl: "+terminal.Clean(note)) // the names come from extensions
}

func printFired(s *session, f mesh.Fired) error {
	if s.json {
		if err := s.printJSON(struct {
			SchemaVersion schemaVersion `json:"schema_version"`
			mesh.Fired
		}{Fired: f}); err != nil {
			return err
		}
	} else {
		for _, w := range f.Warnings {
			fmt.Fprintf(s.stderr, "extctl: %s: %s\n", terminal.Clean(w.ID), terminal.Clean(w.Message))
		}
		if f.Aborted {
			fmt.Fprintf(s.stderr, "extctl: %s aborted the event: %s\n", terminal.Clean(f.By), terminal.Clean(f.Reason))
		}
		if err := s.writeJSON(f.Event); err != nil {
			return err
		}
	}
	if f.Aborted {
		return silentError(exitToolError)
	}
	return nil
}
