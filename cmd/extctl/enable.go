package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
)

// enableJSON is what enable and disable print.
type enableJSON struct {
	header
	ID      string `json:"id"`
	Enabled bool   `json:"enabled"`
	Changed bool   `json:"changed"` // false: it was so already
	Config  string `json:"config"`
}

func (a *app) enableCmd() *cobra.Command {
	return a.switchCmd(true, "enable ID", "Let an extension of this host be run",
		`Take ID off extensions.disabled and, where there is an allowlist, put it on that.

The rest of extensions.yaml, comments and all, stays as it is. A running bridge takes it up with extctl reload.`)
}

func (a *app) disableCmd() *cobra.Command {
	return a.switchCmd(false, "disable ID", "Keep an extension of this host from being run",
		`Put ID on extensions.disabled.

The rest of extensions.yaml, comments and all, stays as it is. A running bridge takes it up with extctl reload.`)
}

func (a *app) switchCmd(on bool, use, short, long string) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setEnabled(cmd.Context(), f, args[0], on)
		},
		ValidArgsFunction: f.completeLocal,
	}
	f.add(cmd)
	return cmd
}

func (a *app) setEnabled(ctx context.Context, f hostFlags, id string, on bool) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	h := f.readHost()
	if !a.json {
		printDiagnostics(a.stderr, h.diags)
	}
	if err := h.usable(exitConfigWrite); err != nil {
		return err
	}
	// An id that is disabled may be enabled although its extension is gone, or the list could not be tidied.
	if !on || !slices.Contains(h.settings().Disabled, id) {
		if _, _, err := h.find(ctx, id); err != nil {
			return err
		}
	}
	changed, err := setDisabled(ctx, h.path, id, !on)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(enableJSON{ID: id, Enabled: on, Changed: changed, Config: h.path})
	}
	what := map[bool]string{true: "enabled", false: "disabled"}[on]
	if !changed {
		fmt.Fprintf(a.stdout, "%s was %s already\n", id, what)
		return nil
	}
	fmt.Fprintf(a.stdout, "%s is %s in %s\n", id, what, h.path)
	fmt.Fprintln(a.stderr, "a running bridge takes it up with: extctl reload BRIDGE")
	return nil
}

func setDisabled(ctx context.Context, path, id string, disabled bool) (changed bool, err error) {
	changed, err = config.SetDisabled(ctx, path, id, disabled)
	return changed, notWritten(ctx, err)
}

// notWritten makes the error of an edit of extensions.yaml one with its exit code.
func notWritten(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fail(exitConfigWrite, "%w", err)
}
