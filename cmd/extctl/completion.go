package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// completeTimeout limits how long a completion may take.
var completeTimeout = time.Second

// completeIDs completes the first argument with the ids in the catalog, and the others if the verb takes several.
func (a *app) completeIDs(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 && !strings.Contains(cmd.Use, "ID…") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	a.complete(cmd, []string{wire.KindState}, func(c *mesh.Catalog) {
		for _, e := range c.All() {
			if !slices.Contains(args, e.ID) {
				out = append(out, cobra.CompletionWithDesc(e.ID, string(e.State.State)))
			}
		}
	})
	if cmd.Name() == "show" {
		out = append(out, cobra.CompletionWithDesc("registry", "the status of the registry"))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeFlags completes the values of the flags of a command and its subcommands that name bridges, states or contexts. For a
// shell it removes the backticks around placeholders from the flags' descriptions, which --help interprets.
func completeFlags(a *app, cmd *cobra.Command) {
	bridges := func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.completeBridges(cmd, nil, typed)
	}
	for name, complete := range map[string]cobra.CompletionFunc{
		"bridge": bridges, "host": bridges, "context": completeContexts,
		"state": cobra.FixedCompletions(listedStates, cobra.ShellCompDirectiveNoFileComp),
		"for":   cobra.FixedCompletions(append(slices.Clone(listedStates), gone), cobra.ShellCompDirectiveNoFileComp),
	} {
		if _, done := cmd.GetFlagCompletionFunc(name); done || cmd.Flag(name) == nil {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil { // the flag exists and has none
			panic(err)
		}
	}
	if len(a.line) > 0 && a.line[0] == cobra.ShellCompRequestCmd {
		for _, m := range flagNames.FindAllStringSubmatch(cmd.LocalFlags().FlagUsages(), -1) {
			f := cmd.Flag(m[1])
			f.Usage = strings.ReplaceAll(f.Usage, "`", "")
		}
	}
	for _, sub := range cmd.Commands() {
		completeFlags(a, sub)
	}
}

// completeContexts completes the name of a context of the nats command.
func completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return daemon.Contexts(), cobra.ShellCompDirectiveNoFileComp
}

// completeHooks completes the first argument with the hooks that extensions offer.
func completeHooks(a *app, cmd *cobra.Command, args []string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		a.complete(cmd, []string{wire.KindSpec}, func(c *mesh.Catalog) {
			for _, e := range c.All() {
				for _, hook := range e.Spec.Hooks {
					if isPlainWord(hook) {
						out = append(out, hook)
					}
				}
			}
		})
	}
	slices.Sort(out)
	return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp
}

// completeTools completes the first argument with the tools' names, and the others with the tool's arguments.
func (a *app) completeTools(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	directive := cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		a.complete(cmd, nil, func(c *mesh.Catalog) {
			for _, t := range matching(c.All(), "") {
				out = append(out, cobra.CompletionWithDesc(t.Name, terminal.Short(ownDescription(t.Extension, t.Description), 60)))
			}
		})
		return out, directive
	}
	offer := func(word, description string) {
		if isPlainWord(word) {
			out = append(out, cobra.CompletionWithDesc(word, terminal.Short(description, 60)))
		}
	}
	completeWith(a, cmd, func(ctx context.Context, s *session) error {
		_, t, err := s.findTool(ctx, args[0])
		if err != nil {
			return err
		}
		all := toolargs.Properties(t.InputSchema)
		for _, p := range all {
			if strings.HasPrefix(typed, p.Name+"=") {
				for _, choice := range p.Choices() {
					offer(choice, "")
				}
			}
		}
		if len(out) > 0 {
			return nil
		}
		directive |= cobra.ShellCompDirectiveNoSpace
		for _, p := range all {
			offer(p.Name+"=", p.Description)
		}
		return nil
	})
	return out, directive
}

// isPlainWord reports whether a completion is safe: the shell may evaluate it, and it is from an extension.
func isPlainWord(word string) bool { return terminal.ShellWord(word) == word }

// complete loads the catalog without schemas, or only some kinds of its documents, for f.
func (a *app) complete(cmd *cobra.Command, kinds []string, f func(*mesh.Catalog)) {
	completeWith(a, cmd, func(ctx context.Context, s *session) error {
		c, err := mesh.LoadCatalog(ctx, s.nc, mesh.CatalogOptions{Prefix: string(s.prefix), NoSchemas: true}, kinds...)
		if err == nil {
			f(c)
		}
		return err
	})
}

// completeWith connects for f. Errors are dropped: a completion cannot show them.
func completeWith(a *app, cmd *cobra.Command, f func(context.Context, *session) error) {
	// cobra runs completions outside Execute, where the context may be nil.
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
		cmd.SetContext(ctx)
	}
	_ = a.withMesh(cmd, completeTimeout, f)
}
