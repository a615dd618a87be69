package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
)

func enableCmd(a *app) *cobra.Command {
	return switchCmd(a, true, "enable ID", "Enable an extension of this host",
		`Remove ID from extensions.disabled and, if there is an allowlist, add it to that.

The rest of extensions.yaml, including comments, is not changed. A running bridge applies the change after
extctl reload.`)
}

func disableCmd(a *app) *cobra.Command {
	return switchCmd(a, false, "disable ID", "Disable an extension of this host",
		`Add ID to extensions.disabled.

The rest of extensions.yaml, including comments, is not changed. A running bridge applies the change after
extctl reload.`)
}

func switchCmd(a *app, on bool, use, short, long string) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return setEnabled(cmd.Context(), a, f, args[0], on)
		},
		ValidArgsFunction: f.completeLocal,
	}
	f.add(cmd)
	return cmd
}

func setEnabled(ctx context.Context, a *app, f hostFlags, id string, on bool) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	h := f.readHost(a.credentials())
	if !a.json {
		printDiagnostics(a.stderr, h.diags)
	}
	if err := h.usable(exitConfigWrite); err != nil {
		return err
	}
	// A disabled id can be enabled without its extension; otherwise it could not be removed from the list.
	if !on || !slices.Contains(h.settings().Disabled, id) {
		if _, _, err := h.find(ctx, id); err != nil {
			if on || brokenDir(id, h.all(ctx)) == "" { // one with a broken manifest may still run as it was before
				return err
			}
		}
	}
	_, missing := os.Stat(h.path)
	changed, err := setDisabled(ctx, h.path, id, !on)
	if err != nil {
		return err
	}
	if changed && missing != nil {
		noteCreated(a, h.path)
	}
	off := on && !h.settings().Enabled
	if a.json {
		return a.printObject(member{"id", id}, member{"enabled", on && !off}, member{"changed", changed}, member{"config", h.path})
	}
	what := map[bool]string{true: "enabled", false: "disabled"}[on]
	if off {
		fmt.Fprintf(a.stderr, "no extension runs on this host: extensions.enabled is false in %s\n", h.path)
	}
	if !changed {
		fmt.Fprintf(a.stdout, "%s is already %s\n", id, what)
		return nil
	}
	fmt.Fprintf(a.stdout, "%s is %s in %s\n", id, what, h.path)
	fmt.Fprintln(a.stderr, "to apply this on running bridges: extctl reload, which prints where each of them looks for extensions")
	return nil
}

// noteCreated states what a new extensions.yaml changes for all extensions of the host.
func noteCreated(a *app, path string) {
	a.note("extctl: created %s with inherit_env: minimal: after a reload, all extensions get PATH, HOME and a few other variables, and those that their manifests declare", path)
}

func setDisabled(ctx context.Context, path, id string, disabled bool) (changed bool, err error) {
	changed, err = config.SetDisabled(ctx, path, id, disabled)
	return changed, notWritten(ctx, err)
}

// notWritten adds the exit code to an error of editing extensions.yaml.
func notWritten(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fail(exitConfigWrite, "%w", err)
}
