package bridge

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
)

// carryOver adds to p the workloads and declarations of the old plan that are missing from p without having been
// removed: their manifest no longer parses, or the search for manifests was incomplete.
func (pl *planner) carryOver(p *plan, old plan) {
	settings := pl.config()
	have := map[string]bool{}
	for _, w := range p.workloads {
		have[w.id()] = true
	}
	for _, d := range p.declared {
		have[d.announce.ID] = true
	}
	for _, w := range old.workloads {
		switch {
		case have[w.id()], !wanted(settings, w.announce):
			continue
		case isBroken(p.problems, w.path, w.id()):
			pl.log.Warn("the manifest is broken; the extension keeps running with its previous manifest", "extension", w.id(), "path", w.path)
		case p.incomplete && mayExist(w.path):
			pl.log.Warn("the search for extensions was cut short; keeping one that it did not find", "extension", w.id(), "path", w.path)
		default:
			continue
		}
		p.workloads = append(p.workloads, w)
	}
	for _, d := range old.declared {
		if !have[d.announce.ID] && wanted(settings, d.announce) && (isBroken(p.problems, d.path, d.announce.ID) || p.incomplete && mayExist(d.path)) {
			p.declared = append(p.declared, d)
		}
	}
}

// isBroken reports whether the manifest at path has a problem other than an unmet requirement, as a whole or for id.
func isBroken(problems []wire.HostProblem, path, id string) bool {
	return slices.ContainsFunc(problems, func(p wire.HostProblem) bool {
		return p.Path == path && p.Kind != "gated" && (p.ID == "" || p.ID == id)
	})
}

// mayExist returns false only if the file at path does not exist.
func mayExist(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// wanted reports whether the settings allow an extension, or its parent, to run.
func wanted(c config.Config, a wire.Announce) bool {
	id := a.ID
	if a.Parent != "" {
		id = a.Parent
	}
	return c.Enabled && !slices.Contains(c.Disabled, id) && !slices.Contains(c.ReservedIDs, id) && (len(c.Allowlist) == 0 || slices.Contains(c.Allowlist, id))
}
