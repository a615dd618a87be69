package bridge

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// keepWhatMayBe puts into p what ran, or was declared, before and is missing for no good reason: its manifest no longer
// parses, which the host's problems say; or the search was cut short, and it need not be gone.
func (b *Bridge) carryOver(p *plan) {
	b.mu.Lock()
	old, settings := b.current, b.settings
	b.mu.Unlock()
	have := map[string]bool{}
	for _, w := range p.workloads {
		have[w.id()] = true
	}
	for _, d := range p.declared {
		have[d.announce.ID] = true
	}
	for _, w := range old.workloads {
		switch {
		case have[w.id()]:
			continue
		case isBroken(p.host.Problems, w.path, w.id()):
			b.log.Warn("its manifest is broken; the extension goes on as it was", "extension", w.id(), "path", w.path)
		case p.incomplete && mayExist(w.path) && wanted(settings, w.announce):
			b.log.Warn("the search for extensions was cut short; one that it did not find goes on", "extension", w.id(), "path", w.path)
		default:
			continue
		}
		p.workloads = append(p.workloads, w)
		p.host.Extensions = append(p.host.Extensions, w.id())
	}
	for _, d := range old.declared {
		if !have[d.announce.ID] && (isBroken(p.host.Problems, d.path, d.announce.ID) || p.incomplete && mayExist(d.path) && wanted(settings, d.announce)) {
			p.declared = append(p.declared, d)
		}
	}
}

// isBroken reports whether the manifest at path is, or what it says of one extension. What is only gated is in the plan.
func isBroken(problems []mesh.HostProblem, path, id string) bool {
	return slices.ContainsFunc(problems, func(p mesh.HostProblem) bool {
		return p.Path == path && p.Kind != "gated" && (p.ID == "" || p.ID == id)
	})
}

// mayBeThere reports whether a file is not known to be gone.
func mayExist(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// wanted reports whether the settings let an extension, or the one that it is a member of, run.
func wanted(c config.Config, a mesh.Announce) bool {
	id := a.ID
	if a.Parent != "" {
		id = a.Parent
	}
	return c.Enabled && !slices.Contains(c.Disabled, id) && (len(c.Allowlist) == 0 || slices.Contains(c.Allowlist, id))
}
