package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/validate"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

func validateCmd(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "validate PATH…",
		Short: "Check manifests and list every fault; - reads a manifest from stdin",
		Long: `Check manifests and print every fault with its line and column.

PATH is a plugin.toml, a directory that is searched for them, a pattern such as 'extensions/*/plugin.toml', or -
for a manifest on stdin. An .mcp.json or another JSON file with the servers of an MCP client, a SKILL.md and an
extensions.yaml are checked by their own rules.

The exit code is 0 if every file is valid, 2 if one is not, and 1 if nothing was found at a PATH.`,
		Example: "  extctl validate extensions\n  extctl validate - < plugin.toml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runValidate(cmd.Context(), a, hostFlags{config: file}, args)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "extensions.yaml `FILE`, for reserved_ids and agent_version (default "+config.DefaultPath+" if it exists)")
	return cmd
}

func runValidate(ctx context.Context, a *app, f hostFlags, args []string) error {
	h := f.readHost(a.credentials())
	if manifest.HasErrors(h.diags) {
		fmt.Fprintf(a.stderr, "%s has errors; its reserved_ids and agent_version may not be applied\n", h.path)
	}
	results, err := validate.Paths(ctx, args, validate.Options{Stdin: a.readStdin, Settings: h.settings(), Manifest: h.local.ManifestOptions()})
	if err != nil {
		return err
	}
	if err = printValidated(a, results); err != nil {
		return err
	}
	for _, r := range results {
		switch {
		case !r.OK && !r.Absent:
			return silentError(exitUsage)
		case r.Absent:
			err = silentError(exitNotFound)
		}
	}
	return err
}

func printValidated(a *app, results []validate.Result) error {
	if a.json {
		for i := range results {
			results[i].Diagnostics = list(results[i].Diagnostics)
		}
		return a.printObject(member{"results", list(results)})
	}
	bad := 0
	for _, r := range results {
		printDiagnostics(a.stdout, r.Diagnostics)
		if !r.OK {
			bad++
		} else if _, err := fmt.Fprintln(a.stdout, terminal.Clean(r.Path+": ok: "+cmp.Or(r.Checked, strings.TrimSpace(r.ID+" "+r.Version)))); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "%s checked, %d not valid\n", words.Plural(len(results), "file"), bad)
	return nil
}
