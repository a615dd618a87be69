package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// The commands that need no mesh read this host as a bridge with the same flags would.

// hostFlags are the flags that locate the extensions of this host.
type hostFlags struct {
	config  string
	search  []string
	secrets string
}

func (f *hostFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "config", "", "extensions.yaml `FILE` (default "+config.DefaultPath+" if it exists)")
	cmd.Flags().StringArrayVar(&f.search, "search-path", nil, "look for extensions in `DIR` instead of the file's search_paths; may be repeated")
	cmd.Flags().StringVar(&f.secrets, "secrets", "", "`MODE` of secrets of a bridge that was started with this flag, instead of the file's: inherit or granted")
}

// localHost is this host with its configuration.
type localHost struct {
	path  string // of the configuration file, which may not exist
	diags []manifest.Diagnostic
	cfg   bridge.Config
	local bridge.Local // made from cfg
}

// settings are the configuration's; a setting with an error has its default.
func (h localHost) settings() config.Config { return h.cfg.Settings }

// with returns h with other settings.
func (h localHost) with(cfg bridge.Config) localHost {
	h.cfg, h.local = cfg, bridge.NewLocal(cfg)
	return h
}

// readHost reads the configuration and keeps its errors in diags. Use load if errors must stop the command.
func (f hostFlags) readHost(mesh gate.Credentials) localHost {
	h := localHost{path: f.config}
	if h.path == "" {
		h.path = config.DefaultPath
	}
	settings, diags := config.Load(h.path, f.config != "")
	if len(f.search) > 0 {
		settings.SearchPaths = f.search
	}
	switch mode := config.Secrets(f.secrets); mode {
	case "":
	case config.SecretsInherit, config.SecretsGranted:
		settings.Secrets = mode
	default:
		diags = append(diags, manifest.Diagnostic{Level: manifest.Error, Path: "--secrets", Message: fmt.Sprintf("%q is not a mode; want inherit or granted", f.secrets)})
	}
	h.diags = diags
	return h.with(bridge.Config{Settings: settings, Version: daemon.Version(), StateDir: bridge.DefaultStateDir(), Environ: os.Environ(), Mesh: mesh})
}

// credentials are the credentials for NATS that a bridge with the same flags on this host would use. Commands that need
// NATS report invalid flags.
func (a *app) credentials() gate.Credentials {
	target, err := a.nats.Resolve()
	if err != nil {
		return gate.Credentials{}
	}
	return gate.Credentials(target.Secrets)
}

// load reads the configuration, prints its errors, and checks the directories given on the command line.
func (a *app) load(f hostFlags) (localHost, error) {
	h, err := a.loadConfig(f)
	if err != nil {
		return h, err
	}
	if err := bridge.CheckDirs(f.search); err != nil {
		return h, daemon.UsageError{Err: err}
	}
	return h, nil
}

// loadConfig is load for a command that creates the directories.
func (a *app) loadConfig(f hostFlags) (localHost, error) {
	h := f.readHost(a.credentials())
	if !a.json {
		printDiagnostics(a.stderr, h.diags)
	}
	return h, h.usable(exitUsage)
}

// usable returns a failure with code if the configuration has errors, which the caller has printed.
func (h localHost) usable(code int) error {
	n := count(h.diags, manifest.Error)
	if n == 0 {
		return nil
	}
	return fail(code, "%s cannot be used: it has %s", h.path, words.Plural(n, "error")).
		with("fix it first; nothing was changed", map[string]any{"diagnostics": h.diags})
}

// count counts the findings of a level.
func count(diags []manifest.Diagnostic, level manifest.Level) (n int) {
	for _, d := range diags {
		if d.Level == level {
			n++
		}
	}
	return n
}

// scan finds the extensions that a bridge would run. Findings about the configuration refer to the file that was read.
func (h localHost) scan(ctx context.Context) discovery.Report {
	report := h.local.Scan(ctx)
	for i, d := range report.Diagnostics {
		if d.Path == filepath.Base(config.DefaultPath) {
			report.Diagnostics[i].Path = h.path
		}
	}
	return report
}

// inside returns the id of an extension in the directory of another one; "" if there is none.
func inside(dir string, report discovery.Report) string {
	for _, c := range slices.Concat(report.Candidates, report.Shadowed) {
		if c.Root != dir && discovery.Within(dir, c.Root) {
			return c.Manifest.Plugin.ID
		}
	}
	return ""
}

// all finds every extension, including those that the configuration disables.
func (h localHost) all(ctx context.Context) discovery.Report {
	cfg := h.cfg
	cfg.Settings.Enabled, cfg.Settings.Disabled, cfg.Settings.Allowlist = true, nil, nil
	return h.with(cfg).scan(ctx)
}

// find finds the extension id, also if it is disabled. others are extensions with the same id that it takes precedence
// over.
func (h localHost) find(ctx context.Context, id string) (c discovery.Candidate, others []discovery.Candidate, err error) {
	if err := checkLocalID(id); err != nil {
		return c, nil, err
	}
	report := h.all(ctx)
	for _, s := range report.Shadowed {
		if s.Manifest.Plugin.ID == id {
			others = append(others, s)
		}
	}
	var known []string
	for _, c := range report.Candidates {
		if c.Manifest.Plugin.ID == id {
			return c, others, nil
		}
		known = append(known, c.Manifest.Plugin.ID)
	}
	if err := ctx.Err(); err != nil {
		return c, nil, err
	}
	return c, nil, h.notFound(id, known, report.InvalidCount)
}

// checkLocalID checks an id from the command line. Members are rejected: they are managed with their extension.
func checkLocalID(id string) error {
	err := wire.CheckID(id, false)
	if err == nil {
		return nil
	}
	f := &failure{code: exitInvalidID, err: err}
	if parent, _, dotted := strings.Cut(id, "."); dotted && wire.CheckID(parent, false) == nil {
		f.hint = "members are managed with their extension: use " + parent
	}
	return f
}

// notFound is the failure for an id that no extension on this host has.
func (h localHost) notFound(id string, known []string, invalid int) error {
	f := fail(exitNotFound, "no extension in %s has the id %q", strings.Join(h.settings().Roots(), ", "), id)
	switch {
	case slices.Contains(h.settings().Disabled, id):
		f.hint = "it is disabled in " + h.path + "; extctl enable " + id
	case f.suggest(id, known):
	case invalid > 0:
		f.hint = words.Plural(invalid, "manifest") + " there cannot be used; `extctl discover` shows why"
	case len(known) > 0:
		f.hint = "`extctl discover` lists the extensions of this host"
	default:
		f.hint = "no extension was found; give their directory with --search-path, or in extensions.search_paths"
	}
	return f
}

// completeLocal completes the first argument with the ids of this host's extensions.
func (f *hostFlags) completeLocal(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if len(args) == 0 {
		ctx := cmd.Context()
		if ctx == nil { // cobra runs completions outside Execute
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completeTimeout)
		defer cancel()
		for _, c := range f.readHost(gate.Credentials{}).all(ctx).Candidates {
			out = append(out, cobra.CompletionWithDesc(c.Manifest.Plugin.ID, terminal.Short(c.Manifest.Plugin.Description, 60)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// printDiagnostics prints one finding per line: path:line:column: level: key: message.
func printDiagnostics(w io.Writer, diags []manifest.Diagnostic) {
	for _, d := range diags {
		fmt.Fprintln(w, terminal.Clean(d.String()))
	}
}

// list copies names into a slice that JSON encodes as [], never as null.
func list[T any](names []T) []T { return append([]T{}, names...) }
