package discovery

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// scan is the state of a scan after the walk; each method is one step.
type scan struct {
	candidates []Candidate       // by root index, then path
	first      map[string]string // id → path of the first candidate that has it
	shadowed   []Candidate
	disabled   int
	invalid    int
	findings
}

// parse reads the manifests and their sidecars, in the order of the locations.
func (s *scan) parse(ctx context.Context, locations []location, opt manifest.Options) {
	for _, p := range locations {
		if ctx.Err() != nil {
			s.incomplete = true
			s.add(manifest.Error, p.path(), "", "the scan was interrupted here: %v", context.Cause(ctx))
			return
		}
		m, diags := p.parse(opt)
		s.diags = append(s.diags, diags...)
		if m == nil {
			s.invalid++
			continue
		}
		s.candidates = append(s.candidates, Candidate{Manifest: m, Root: p.dir, Path: p.path(), RootIndex: p.root})
	}
}

// parse reads the manifest, which is nil if it is refused, and its sidecar.
func (p location) parse(opt manifest.Options) (*manifest.Manifest, []manifest.Diagnostic) {
	var f findings
	data, err := document.ReadFile(cmp.Or(p.file, p.sidecar))
	if err != nil {
		f.add(manifest.Error, p.path(), "", "the manifest cannot be read: %v", document.Reason(err))
		return nil, f.diags
	}
	opt.Sidecar, opt.Program = nil, gate.Program(p.dir)
	if p.file == "" {
		return manifest.ParseSidecar(filepath.Base(p.dir), p.path(), data, opt)
	}
	if p.sidecar != "" {
		path := filepath.Join(p.dir, manifest.SidecarName)
		if data, err := document.ReadFile(p.sidecar); err != nil {
			f.add(manifest.Warn, path, "", "the sidecar cannot be read and is ignored: %v", document.Reason(err))
		} else {
			opt.Sidecar = &manifest.Sidecar{Path: path, Data: data}
		}
	}
	m, diags := manifest.Parse(p.path(), data, opt)
	return m, append(diags, f.diags...)
}

// pruneNested drops candidates inside another one, because an extension may contain others as vendored copies or
// examples. An .mcp.json alone does not hide what is below it: the root of a project may have one for its developers.
// It looks up each candidate's parents, which is cheaper than comparing all pairs.
func (s *scan) pruneNested() {
	ids := make(map[string]string, len(s.candidates))
	for _, c := range s.candidates {
		if filepath.Base(c.Path) == manifest.FileName {
			ids[c.Root] = c.Manifest.Plugin.ID
		}
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(c Candidate) bool {
		for dir := c.Root; filepath.Dir(dir) != dir; {
			dir = filepath.Dir(dir)
			if id, nested := ids[dir]; nested {
				s.add(manifest.Info, c.Path, "", "is inside the extension %q in %s and is skipped", id, dir)
				return true
			}
		}
		return false
	})
}

// dedupe keeps the first candidate of each id.
func (s *scan) dedupe() {
	s.first = make(map[string]string, len(s.candidates))
	s.candidates = slices.DeleteFunc(s.candidates, func(c Candidate) bool {
		id := c.Manifest.Plugin.ID
		if path, taken := s.first[id]; taken {
			key, remedy := "plugin.id", "give it another id"
			if filepath.Base(c.Path) == manifest.SidecarName {
				key, remedy = "", "rename its directory, whose name is its id"
			}
			s.add(manifest.Warn, c.Path, key, "id %q is already used by %s, which comes first; this one is skipped: %s, or remove it", id, path, remedy)
			s.shadowed = append(s.shadowed, c)
			return true
		}
		s.first[id] = c.Path
		return false
	})
}

func (s *scan) disable(ids []string) {
	off := set(ids)
	before := len(s.candidates)
	s.candidates = slices.DeleteFunc(s.candidates, func(c Candidate) bool { return off[c.Manifest.Plugin.ID] })
	s.disabled = before - len(s.candidates)
}

// allow keeps only the listed ids, if any are listed. A listed id that is disabled counts as found.
func (s *scan) allow(ids []string) {
	if len(ids) == 0 {
		return
	}
	on := set(ids)
	s.candidates = slices.DeleteFunc(s.candidates, func(c Candidate) bool {
		id := c.Manifest.Plugin.ID
		if !on[id] {
			s.add(manifest.Info, c.Path, "plugin.id", "%q is not in the allowlist and is skipped", id)
		}
		return !on[id]
	})
	for _, id := range slices.Sorted(maps.Keys(on)) {
		if _, known := s.first[id]; !known {
			s.add(manifest.Warn, "extensions.yaml", "extensions.allowlist", "no extension %q was found; correct the id, or remove it from the allowlist", id)
		}
	}
}

func set(names []string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}
