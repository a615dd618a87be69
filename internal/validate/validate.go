// Package validate checks the files that people write for the mesh, each by the rules of its kind: manifests, the files of MCP
// clients, skills, the settings of a host, and directories with them.
package validate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// Options are what the checks depend on.
type Options struct {
	Stdin    func(ctx context.Context, limit int64) ([]byte, error) // reads the manifest of the path -, at most limit bytes
	Settings config.Config                                          // how directories are searched
	Manifest manifest.Options                                       // how manifests are checked
}

// Result is the result for one file.
type Result struct {
	Path        string                `json:"path"`
	OK          bool                  `json:"ok"`
	ID          string                `json:"id"`
	Version     string                `json:"version"`
	Checked     string                `json:"checked,omitempty"` // what the file is and contains, if it has no id and version
	Diagnostics []manifest.Diagnostic `json:"diagnostics"`

	Absent bool `json:"-"` // Path does not exist
}

// Paths checks what paths name: files, directories, patterns, and - for a manifest on standard input. It fails only if ctx ends.
func Paths(ctx context.Context, paths []string, o Options) ([]Result, error) {
	v := &validator{Options: o, seen: map[string]bool{}}
	for _, path := range paths {
		v.argument(ctx, path)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return v.results, nil
}

// validator collects the results for the paths.
type validator struct {
	Options
	seen    map[string]bool
	results []Result
}

// add adds the result for a file, once.
func (v *validator) add(r Result) {
	if v.seen[filepath.Clean(r.Path)] {
		return
	}
	v.seen[filepath.Clean(r.Path)] = true
	r.OK = !manifest.HasErrors(r.Diagnostics)
	v.results = append(v.results, r)
}

// absent adds the result for a path that does not exist.
func (v *validator) absent(path, why string) {
	v.add(Result{Path: path, Absent: true, Diagnostics: []manifest.Diagnostic{{Level: manifest.Error, Path: path, Message: why}}})
}

// argument checks what one argument names.
func (v *validator) argument(ctx context.Context, arg string) {
	if arg == "-" {
		data, err := v.Stdin(ctx, manifest.MaxFile+1) // Parse refuses more than MaxFile
		if ctx.Err() != nil {
			return
		}
		if first := strings.TrimSpace(string(data)); err == nil && first != "" && strings.ContainsAny(first[:1], "{/") {
			m, diags := manifest.ParseSidecar("stdin", "-", data, v.Manifest) // no TOML begins like this
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
		v.add(Result{Path: arg, Diagnostics: []manifest.Diagnostic{{Level: manifest.Error, Path: arg, Message: "invalid pattern: " + err.Error()}}})
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
		v.add(Result{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	rules := v.Manifest
	rules.Sidecar = sidecar
	if path != "-" { // the directory of a manifest on stdin is unknown
		rules.Program = gate.Program(filepath.Dir(path))
	}
	m, diags := manifest.Parse(path, data, rules)
	v.parsed(path, m, diags)
}

// clientFile checks an .mcp.json or the file of another MCP client as an extension of its own, also next to a plugin.toml.
func (v *validator) clientFile(path string) {
	data, err := document.ReadFile(path)
	if err != nil {
		v.add(Result{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	dir := filepath.Dir(path)
	rules := v.Manifest
	rules.Program = gate.Program(dir)
	m, diags := manifest.ParseSidecar(nameOf(dir), path, data, rules)
	v.parsed(path, m, diags)
}

// parsed adds the result of parsing a manifest.
func (v *validator) parsed(path string, m *manifest.Manifest, diags []manifest.Diagnostic) {
	r := Result{Path: path, Diagnostics: diags}
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
		v.add(Result{Path: path, Diagnostics: unreadable(path, err)})
		return
	}
	_, diags := manifest.ParseSkill(path, data)
	name := nameOf(filepath.Dir(path))
	if err := discovery.SkillDir(name); err != nil {
		diags = append(diags, manifest.Diagnostic{Level: manifest.Error, Path: path, Message: err.Error()})
	}
	v.add(Result{Path: path, ID: name, Checked: "skill " + name, Diagnostics: diags})
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
