package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/scaffold"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

var newTransports = []string{"stdio", "http", "nats"}

// newOptions are the flags of new.
type newOptions struct {
	lang, dir, transport string
	mcp                  bool
}

// newJSON is the output of new.
type newJSON struct {
	header
	ID         string   `json:"id"`
	Lang       string   `json:"lang"`
	Transport  string   `json:"transport"`
	MCP        bool     `json:"mcp"`
	Path       string   `json:"path"`
	Files      []string `json:"files"`
	AllowWrite string   `json:"allow_write"` // the variable that the destructive tool requires
}

func newCmd(a *app) *cobra.Command {
	var o newOptions
	var names []string
	for _, l := range scaffold.Languages {
		names = append(names, l.Name)
	}
	cmd := &cobra.Command{
		Use:   "new NAME --lang " + strings.Join(names, "|"),
		Short: "Create an extension: a directory with two tools, a manifest and a test",
		Long: `Create a directory NAME with a working extension: a manifest, a tool that reads, a destructive tool that
requires <NAME>_ALLOW_WRITE, and a test. It needs nothing but its language; a service in Go also needs a checkout of extmesh.

With --mcp the program is an MCP server, which also works in MCP clients (python, node, typescript). With --transport http
it is a server that a bridge calls (python, node, typescript), with --transport nats a service on NATS without a bridge (go).`,
		Example: "  extctl new dice --lang python\n  extctl new dice --lang typescript --mcp\n  extctl doctor --runtime dice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNew(cmd.Context(), a, args[0], o)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&o.lang, "lang", "", "the `LANGUAGE`: "+words.Or(names))
	cmd.Flags().StringVar(&o.dir, "dir", ".", "create it in `DIR`")
	cmd.Flags().StringVar(&o.transport, "transport", "stdio", "how calls reach it: `TRANSPORT` stdio, http or nats")
	cmd.Flags().BoolVar(&o.mcp, "mcp", false, "create an MCP server")
	for flag, values := range map[string][]string{"lang": names, "transport": newTransports} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	return cmd
}

// language returns the chosen language, if it can do what the other flags require.
func (o newOptions) language() (scaffold.Language, error) {
	var names, able []string
	for _, l := range scaffold.Languages {
		names = append(names, l.Name)
		if l.Supports(o.transport, o.mcp) {
			able = append(able, l.Name)
		}
	}
	l, known := scaffold.Find(o.lang)
	switch {
	case !slices.Contains(newTransports, o.transport):
		return l, usage("--transport %q: want %s", o.transport, words.Or(newTransports))
	case o.lang == "":
		return l, daemon.UsageError{Err: fmt.Errorf("--lang is missing: want %s", words.Or(names)), Hint: "for example: extctl new dice --lang python"}
	case !known:
		return l, usage("--lang %q: want %s", o.lang, words.Or(names))
	case !slices.Contains(able, l.Name):
		what := "--transport " + o.transport
		if o.mcp {
			what += " --mcp"
		}
		if len(able) == 0 {
			return l, usage("%s: there is no template for an MCP server on NATS; a bridge puts one with --transport stdio or http on the mesh", what)
		}
		return l, usage("%s: there is a template for %s only, not for %s", what, words.Or(able), l.Name)
	}
	return l, nil
}

func runNew(ctx context.Context, a *app, id string, o newOptions) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	if manifest.Reserved(id) {
		return fail(exitInvalidID, "%q is reserved for the agent and the mesh", id).with("choose another name, such as my-"+id, nil)
	}
	lang, err := o.language()
	if err != nil {
		return err
	}
	p := scaffold.New(id, lang, o.transport, o.mcp)
	target := filepath.Join(o.dir, id)
	files, err := p.Write(target)
	if errors.Is(err, fs.ErrExist) {
		return fail(exitExists, "%s exists", target).with("choose another name, or another --dir", nil)
	} else if err != nil {
		return fail(exitCopyFailed, "%w", err)
	}
	if a.json {
		return a.printJSON(newJSON{ID: id, Lang: p.Lang, Transport: o.transport, MCP: o.mcp, Path: target, AllowWrite: p.AllowWrite, Files: files})
	}
	if _, err := fmt.Fprintf(a.stdout, "created %s\n", target); err != nil {
		return err
	}
	adviseNew(a.stderr, p, terminal.ShellWord(target))
	if p.Lang == "typescript" {
		adviseNode(ctx, a.stderr)
	}
	return nil
}

// adviseNew prints what to do with the new extension in the directory dir.
func adviseNew(w io.Writer, p scaffold.Project, dir string) {
	up := "extctl up " + dir
	if _, running := storelock.Running(daemon.StoreDir("")); running {
		up = "extctl up --join " + dir
	}
	fmt.Fprintln(w)
	if p.Transport == "nats" {
		fmt.Fprintf(w, "Add its module, where PATH is a checkout of extmesh:\n                  (cd %s && go work init . PATH)\n", dir)
	}
	fmt.Fprintf(w, "Run its test:     (cd %s && %s)\n", dir, p.Test)
	switch p.Transport {
	case "http":
		fmt.Fprintf(w, "Start it:         (cd %s && %s)\n", dir, p.Start)
	case "nats":
		fmt.Fprintf(w, "Start it:         (cd %s && NATS_URL=$(extctl url) %s)\n", dir, p.Start)
	default:
		fmt.Fprintf(w, "Check it:         extctl doctor --runtime %s\n", dir)
	}
	fmt.Fprintf(w, "Run it on a mesh: %s\n", up)
}

// adviseNode prints what to do if node does not run TypeScript.
func adviseNode(ctx context.Context, w io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "node", "--version").Output()
	if version := strings.TrimSpace(string(out)); err == nil && semver.IsValid(version) && semver.Compare(version, "v22.18.0") < 0 {
		fmt.Fprintf(w, "\nnode is %s here; TypeScript needs Node 22.18 or later. Until then, change the command in plugin.toml to npx, and args to [\"-y\", \"tsx\", \"main.ts\"].\n", terminal.Clean(version))
	}
}
