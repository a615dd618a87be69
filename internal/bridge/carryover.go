package bridge

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// carryOver adds to p the workloads and declarations of the old plan that are missing from p without having been
// removed: their manifest no longer parses or cannot be reached, or the search for manifests was incomplete. It
// removes a copy with the same id that a broken one hid, and what is inside the directory of a broken plugin.toml.
func (pl *planner) carryOver(p *plan, old plan) {
	pl.keepFiles(p, old)
	settings := pl.config()
	paths := map[string]string{} // of what is in p, by id
	for _, w := range p.workloads {
		paths[w.id()] = w.path
	}
	for _, d := range p.declared {
		paths[d.announce.ID] = d.path
	}
	hidden := map[string]bool{} // paths
	var kept []string           // directories of extensions that hide what is below them
	for _, w := range old.workloads {
		path, found := paths[w.id()]
		why := p.broken(w.path, w.announce)
		if why == "" && !found {
			why = p.unread(w.path)
		}
		if why == "" || path == w.path || !wanted(settings, w.announce) {
			continue
		}
		hidden[path] = found
		pl.log.Warn("the extension keeps running with its previous manifest", "reason", why, "extension", w.id(), "path", w.path)
		p.workloads = append(p.workloads, w)
		if filepath.Base(w.path) == manifest.FileName {
			kept = append(kept, filepath.Dir(w.path))
		}
	}
	var declared []declaration
	for _, d := range old.declared {
		if paths[d.announce.ID] == "" && wanted(settings, d.announce) && p.broken(d.path, d.announce)+p.unread(d.path) != "" {
			declared = append(declared, d)
			if filepath.Base(d.path) == manifest.FileName {
				kept = append(kept, filepath.Dir(d.path))
			}
		}
	}
	hides := func(path string) bool {
		return hidden[path] || slices.ContainsFunc(kept, func(dir string) bool {
			return filepath.Dir(path) != dir && discovery.Within(dir, path)
		})
	}
	p.workloads = slices.DeleteFunc(p.workloads, func(w *workload) bool { return hides(w.path) })
	p.declared = append(slices.DeleteFunc(p.declared, func(d declaration) bool { return hides(d.path) }), declared...)
}

// keepFiles keeps the workloads of the old plan of which only a file to which their manifest refers is missing now: another program may be
// replacing it. Changed settings take effect with the first reload that finds the file.
func (pl *planner) keepFiles(p *plan, old plan) {
	for i, v := range p.workloads {
		if v.files == nil || v.files.absent == nil || v.gated != "" {
			continue
		}
		had := slices.IndexFunc(old.workloads, func(w *workload) bool {
			return w.path == v.path && w.id() == v.id() && w.announce.ManifestHash == v.announce.ManifestHash && w.files != nil && w.files.absent == nil
		})
		if had >= 0 {
			pl.log.Warn("the extension keeps running with the previous content of a file", "reason", v.files.absent, "extension", v.id(), "path", v.path)
			p.workloads[i] = old.workloads[had]
		}
	}
}

// broken returns why the manifest at path, which was found, cannot be used; "" if it can.
func (p *plan) broken(path string, a wire.Announce) string {
	_, err := os.Lstat(path)
	switch {
	case a.Parent != "" && p.leftOut[filepath.Join(filepath.Dir(path), strings.TrimPrefix(a.ID, a.Parent+"."))]:
		return "its entry in the file " + manifest.SidecarName + " is broken"
	case p.empty[filepath.Dir(path)] && (a.Parent != "" || !p.keepsMember(path)): // its servers were removed or are switched off
	case isBroken(p.problems, path, a.ID):
		return "the manifest is broken"
	case err == nil && a.Parent != "" && filepath.Base(path) == manifest.FileName && p.torn[filepath.Dir(path)]:
		return "the file " + manifest.SidecarName + " next to the manifest is broken"
	}
	return ""
}

// keepsMember reports whether a server of the sidecar at path has faults, so that it is kept as it was.
func (p *plan) keepsMember(path string) bool {
	for name := range p.leftOut {
		if filepath.Dir(name) == filepath.Dir(path) {
			return true
		}
	}
	return false
}

// unread returns why the search may not have found the manifest at path although it exists; "" if it was removed.
func (p *plan) unread(path string) string {
	_, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "its directory cannot be read"
	case p.incomplete && !errors.Is(err, fs.ErrNotExist):
		return "the search for extensions was cut short"
	}
	return ""
}

// isBroken reports whether the manifest at path has a problem other than an unmet requirement, as a whole or for id. A plugin.toml
// that is added to an .mcp.json takes its place.
func isBroken(problems []wire.HostProblem, path, id string) bool {
	instead := filepath.Join(filepath.Dir(path), manifest.FileName)
	return slices.ContainsFunc(problems, func(p wire.HostProblem) bool {
		return (p.Path == path || filepath.Base(path) == manifest.SidecarName && p.Path == instead) && p.Kind != "gated" && (p.ID == "" || p.ID == id)
	})
}

// wanted reports whether the settings allow an extension, or its parent, to run.
func wanted(c config.Config, a wire.Announce) bool {
	id := a.ID
	if a.Parent != "" {
		id = a.Parent
	}
	return c.Enabled && !slices.Contains(c.Disabled, id) && !slices.Contains(c.ReservedIDs, id) && (len(c.Allowlist) == 0 || slices.Contains(c.Allowlist, id))
}
