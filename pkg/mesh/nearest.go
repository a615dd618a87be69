package mesh

import (
	"cmp"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/nearest"
)

// Nearest returns up to 5 registered names that may have been meant by one that Lookup does not find: first those
// of tools whose own name was asked for, then those a few typing errors away, then those that contain what was
// asked for. It looks at every tool.
func (n *Names) Nearest(name string) []string {
	const most = 5
	if len(name) > 2*MaxToolName {
		return nil
	}
	type hit struct {
		rank int
		name string
	}
	var hits []hit
	asked := fold(name)
	_, askedTool, _ := strings.Cut(asked, "/")
	for _, tools := range n.tools {
		for own, t := range tools {
			bare, rank := fold(t.at(0)), 0
			const far = 4 // nobody means a name that is further away
			switch d := min(nearest.Distance(asked, bare, far), nearest.Distance(asked, fold(t.key.String()), far), 1+nearest.Distance(asked, fold(own), far)); {
			case fold(own) == asked || fold(own) == askedTool || bare == asked:
			case d <= min(3, len(asked)/3):
				rank = d
			case len(asked) >= 3 && strings.Contains(bare, asked):
				rank = 10
			default:
				continue
			}
			hits = append(hits, hit{rank, n.Name(t.key)})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, h := range hits[:min(len(hits), most)] {
		out = append(out, h.name)
	}
	return out
}
