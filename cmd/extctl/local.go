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
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// The verbs that need no mesh look at this host as a bridge does that is started here with the same flags.

// hostFlags say where the extensions of this host are.
type hostFlags struct {
	config string
	search []string
}

func (f *hostFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "config", "", "extensions.yaml `FILE` (default "+config.DefaultPath+" if it is there)")
	cmd.Flags().StringArrayVar(&f.search, "search-path", nil, "look for extensions in `DIR`, instead of where the file says; may be repeated")
}

// localHost is this host as its configuration has it.
type localHost struct {
	path  string // of the configuration, which need not exist
	diags []manifest.Diagnostic
	cfg   bridge.Config
	local bridge.Local // with cfg
}

// settings are the configuration's; what is wrong in the file has its default.
func (h localHost) settings() config.Config { return h.cfg.Settings }

// with is h with other settings.
func (h localHost) with(cfg bridge.Config) localHost {
	h.cfg, h.local = cfg, bridge.NewLocal(cfg)
	return h
}

// readHost reads the configuration. What is wrong with it is in diags; see load for whoever cannot do with that.
func (f hostFlags) readHost() localHost {
	h := localHost{path: f.config}
	if h.path == "" {
		h.path = config.DefaultPath
	}
	settings, diags := config.Load(h.path, f.config != "")
	if len(f.search) > 0 {
		settings.SearchPaths = f.search
	}
	h.diags = diags
	return h.with(bridge.Config{Settings: settings, Version: daemon.Version(), StateDir: bridge.DefaultStateDir(), Environ: os.Environ()})
}

// load reads the configuration, says what is wrong with it, and checks the directories that were named.
func (a *app) load(f hostFlags) (localHost, error) {
	h, err := a.loadConfig(f)
	if err != nil {
		return h, err
	}
	if err := checkDirs(f.search); err != nil {
		return h, daemon.UsageError{Err: err}
	}
	return h, nil
}

// loadConfig is load for a verb that makes the directories.
func (a *app) loadConfig(f hostFlags) (localHost, error) {
	h := f.readHost()
	if !a.json {
		printDiagnostics(a.stderr, h.diags)
	}
	return h, h.usable(exitUsage)
}

// usable is a failure with code if the configuration has errors; the caller has said which.
func (h localHost) usable(code int) error {
	n := errorsIn(h.diags)
	if n == 0 {
		return nil
	}
	f := fail(code, "%s cannot be used: it has %s", h.path, plural(n, "error"))
	f.hint, f.data = "mend it first; nothing was done", map[string]any{"diagnostics": h.diags}
	return f
}

// errorsIn counts the errors among findings.
func errorsIn(diags []manifest.Diagnostic) (n int) {
	for _, d := range diags {
		if d.Level == manifest.Error {
			n++
		}
	}
	return n
}

// part is an extension, or a member of one: what is started apart.
type part struct {
	discovery.Candidate
	m *manifest.Manifest
	bridge.Preflight
}

// parts are what a bridge would start of c, checked.
func (h localHost) parts(c discovery.Candidate) []part {
	var out []part
	for _, m := range append([]*manifest.Manifest{c.Manifest}, c.Manifest.Members()...) {
		if !m.Container() {
			out = append(out, part{c, m, h.local.Check(c, m)})
		}
	}
	return out
}

// scan looks for the extensions that a bridge would run. What is wrong with the configuration in the light of what was
// found is said of the file that was read.
func (h localHost) scan(ctx context.Context) discovery.Report {
	report := h.local.Scan(ctx)
	for i, d := range report.Diagnostics {
		if d.Path == filepath.Base(config.DefaultPath) {
			report.Diagnostics[i].Path = h.path
		}
	}
	return report
}

// all scans for extensions, also those that the configuration keeps from being run.
func (h localHost) all(ctx context.Context) discovery.Report {
	cfg := h.cfg
	cfg.Settings.Enabled, cfg.Settings.Disabled, cfg.Settings.Allowlist = true, nil, nil
	return h.with(cfg).scan(ctx)
}

// find looks for the extension id, run or not. others have its id, too, and come later.
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

// checkLocalID checks an id that was typed. A member has no life of its own on a host.
func checkLocalID(id string) error {
	err := mesh.CheckID(id, false)
	if err == nil {
		return nil
	}
	f := &failure{code: exitInvalidID, err: err}
	if parent, _, dotted := strings.Cut(id, "."); dotted && mesh.CheckID(parent, false) == nil {
		f.hint = "a member belongs to its extension: say " + parent
	}
	return f
}

// notFound is the failure for an id that no extension here has.
func (h localHost) notFound(id string, known []string, invalid int) error {
	f := fail(exitNotFound, "no extension in %s has the id %q", strings.Join(h.settings().Roots(), ", "), id)
	if slices.Contains(h.settings().Disabled, id) {
		f.hint = "it is disabled in " + h.path + "; extctl enable " + id
	} else if near := nearest.Words(id, known); len(near) > 0 {
		f.hint = "did you mean " + orList(near) + "?"
		f.data = map[string]any{"nearest": near}
	} else if invalid > 0 {
		f.hint = plural(invalid, "manifest") + " there cannot be used; extctl discover says why"
	} else if len(known) > 0 {
		f.hint = "extctl discover lists those that are there"
	} else {
		f.hint = "there is none at all; say where they are with --search-path, or with extensions.search_paths"
	}
	return f
}

// completeLocal offers the ids of this host's extensions for the first argument.
func (f *hostFlags) completeLocal(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if len(args) == 0 {
		ctx := cmd.Context()
		if ctx == nil { // cobra runs completions outside Execute
			ctx = context.Background()
		}
		for _, c := range f.readHost().all(ctx).Candidates {
			out = append(out, cobra.CompletionWithDesc(c.Manifest.Plugin.ID, short(c.Manifest.Plugin.Description, 60)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// printDiagnostics prints findings, one a line: path:line:column: level: key: message.
func printDiagnostics(w io.Writer, diags []manifest.Diagnostic) {
	for _, d := range diags {
		fmt.Fprintln(w, clean(d.String()))
	}
}

// list is names as JSON has them: never null.
func list[T any](names []T) []T { return append([]T{}, names...) }
