package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// validated is the result for one file.
type validated struct {
	Path        string                `json:"path"`
	OK          bool                  `json:"ok"`
	ID          string                `json:"id"`
	Version     string                `json:"version"`
	Checked     string                `json:"checked,omitempty"` // what the file is and contains, if it has no id and version
	Diagnostics []manifest.Diagnostic `json:"diagnostics"`

	absent bool // Path does not exist
}

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
	if errorsIn(h.diags) > 0 {
		fmt.Fprintf(a.stderr, "%s has errors; its reserved_ids and agent_version may not be applied\n", h.path)
	}
	v := &validator{stdin: a.stdin, settings: h.settings(), rules: h.local.ManifestOptions(), seen: map[string]bool{}}
	for _, arg := range args {
		v.argument(ctx, arg)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if err := printValidated(a, v.results); err != nil {
		return err
	}
	code := exitOK
	for _, r := range v.results {
		switch {
		case !r.OK && !r.absent:
			return silentError(exitUsage)
		case r.absent:
			code = exitNotFound
		}
	}
	if code != exitOK {
		return silentError(code)
	}
	return nil
}

func printValidated(a *app, results []validated) error {
	if a.json {
		for i := range results {
			results[i].Diagnostics = list(results[i].Diagnostics)
		}
		return a.printJSON(struct {
			header
			Results []validated `json:"results"`
		}{Results: list(results)})
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

// validator collects the results for the given files.
type validator struct {
	stdin    io.Reader
	settings config.Config
	rules    manifest.Options
	seen     map[string]bool
	results  []validated
}

// add adds the result for a file, once.
func (v *validator) add(r validated) {
	if v.seen[filepath.Clean(r.Path)] {
		return
	}
	v.seen[filepath.Clean(r.Path)] = true
	r.OK = !manifest.HasErrors(r.Diagnostics)
	v.results = append(v.results, r)
}

// absent adds the result for a path that does not exist.
func (v *validator) absent(path, why string) {
	v.add(validated{Path: path, absent: true, Diagnostics: []manifest.Diagnostic{{Level: manifest.Error, Path: path, Message: why}}})
}

// argument checks what one argument names.
func (v *validator) argument(ctx context.Context, arg string) {
	if arg == "-" {
		data, err := io.ReadAll(io.LimitReader(v.stdin, manifest.MaxFile+1)) // Parse refuses more than MaxFile
		if first := strings.TrimSpace(string(data)); err == nil && first != "" && strings.ContainsAny(first[:1], "{/") {
			m, diags := manifest.ParseSidecar("stdin", "-", data, v.rules) // no TOML begins like this
			v.parsed("-", m, diags)
			return
		}
		v.manifest("-", data, nil, err)
		return
	}
	if _, err := os.Lstat(arg); err == nil || !strings.ContainsAny(arg, `*?[`) {
		v.path(ctx, arg)
		return
	}
	matches, err := filepath.Glob(arg)
	switch {
	case err != nil:
		v.add(validated{Path: arg, Diagnostics: []manifest.Diagnostic{{Level: manifest.Error, Path: arg, Message: "invalid pattern: " + err.Error()}}})
	case len(matches) == 0:
		v.absent(arg, "nothing matches the pattern")
	}
	for _, m := range matches {
		v.path(ctx, m)
	}
}

// path checks a file by its name, or a directory.
func (v *validator) path(ctx context.Context, path string) {
	info, err := os.Stat(path)
	ext := filepath.Ext(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.absent(path, "there is no such file")
	case err == nil && info.IsDir():
		v.directory(ctx, path)
	case ext == ".yaml" || ext == ".yml":
		v.settingsFile(ctx, path)
	case filepath.Base(path) == manifest.SkillFileName:
		v.skill(path)
	case ext == ".json":
		v.clientFile(path)
	default:
		data, err := document.ReadFile(path)
		v.manifest(path, data, sidecar(path), err)
	}
}

func (v *validator) manifest(path string, data []byte, sidecar *manifest.Sidecar, err error) {
	if err != nil {
		v.add(validated{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	rules := v.rules
	rules.Sidecar = sidecar
	if path != "-" { // the directory of a manifest on stdin is unknown
		rules.Program = gate.Program(filepath.Dir(path))
	}
	m, diags := manifest.Parse(path, data, rules)
	v.parsed(path, m, diags)
}

// clientFile checks an .mcp.json or the file of another MCP client: as part of the plugin.toml next to it, if there is
// one, or as an extension of its own.
func (v *validator) clientFile(path string) {
	dir := filepath.Dir(path)
	whole := filepath.Join(dir, manifest.FileName)
	if data, err := document.ReadFile(whole); err == nil && filepath.Base(path) == manifest.SidecarName {
		v.manifest(whole, data, sidecar(whole), nil)
		return
	}
	data, err := document.ReadFile(path)
	if err != nil {
		v.add(validated{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	rules := v.rules
	rules.Program = gate.Program(dir)
	m, diags := manifest.ParseSidecar(nameOf(dir), path, data, rules)
	v.parsed(path, m, diags)
}

// parsed adds the result of parsing a manifest.
func (v *validator) parsed(path string, m *manifest.Manifest, diags []manifest.Diagnostic) {
	r := validated{Path: path, Diagnostics: diags}
	if m != nil {
		r.ID, r.Version = m.Plugin.ID, m.Plugin.Version
	}
	v.add(r)
}

// sidecar reads the sidecar file next to a plugin.toml. Discovery reports one that cannot be read.
func sidecar(path string) *manifest.Sidecar {
	if filepath.Base(path) != manifest.FileName {
		return nil
	}
	file := filepath.Join(filepath.Dir(path), manifest.SidecarName)
	data, err := document.ReadFile(file)
	if err != nil {
		return nil
	}
	return &manifest.Sidecar{Path: file, Data: data}
}

func (v *validator) skill(path string) {
	data, err := document.ReadFile(path)
	if err != nil {
		v.add(validated{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	_, diags := manifest.ParseSkill(path, data)
	name := nameOf(filepath.Dir(path))
	v.add(validated{Path: path, ID: name, Checked: "skill " + name, Diagnostics: diags})
}

// nameOf is the base name of a directory, also of ".".
func nameOf(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Base(dir)
}

func unreadable(path string, err error) []manifest.Diagnostic {
	return []manifest.Diagnostic{{Level: manifest.Error, Path: path, Message: "cannot be read: " + document.Reason(err).Error()}}
}
