package wire

import (
	"cmp"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/nearest"
)

// maxNearest is the number of similar names that are returned for an unknown one.
const maxNearest = 5

// Keys lists all tools, in no order.
func (n *Names) Keys() []ToolKey {
	out := make([]ToolKey, 0, n.Len())
	for id, tools := range n.tools {
		for own := range tools {
			out = append(out, ToolKey{id, own})
		}
	}
	return out
}

// NearestKeys returns up to 5 tools with a name similar to an unknown one: first tools with this local name, then tools with
// a name that differs by a few characters, then tools with a name that contains it. It takes a microsecond or two per tool,
// so it should not be called with a lock held.
func NearestKeys(keys []ToolKey, name string) []ToolKey {
	if len(name) > 2*MaxToolName {
		return nil
	}
	type hit struct {
		rank int
		bare string
		key  ToolKey
	}
	var hits []hit
	asked := fold(name)
	_, askedTool, _ := strings.Cut(asked, "/")
	for _, k := range keys {
		own, bare, rank := fold(k.Tool), fold(ToolName(k.ID, k.Tool)), 0
		const far = 4 // a name that differs more is not similar
		switch d := min(nearest.Distance(asked, bare, far), nearest.Distance(asked, fold(k.String()), far), 1+nearest.Distance(asked, own, far)); {
		case own == asked || own == askedTool || bare == asked:
		case d <= min(3, len(asked)/3):
			rank = d
		case len(asked) >= 3 && strings.Contains(bare, asked):
			rank = 10
		default:
			continue
		}
		hits = append(hits, hit{rank, bare, k})
	}
	slices.SortFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.bare, b.bare), cmp.Compare(a.key.String(), b.key.String()))
	})
	var out []ToolKey
	for _, h := range hits[:min(len(hits), maxNearest)] {
		out = append(out, h.key)
	}
	return out
}
