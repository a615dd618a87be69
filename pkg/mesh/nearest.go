package mesh

import (
	"cmp"
	"slices"
	"strings"
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
			switch d := min(editDistance(asked, bare), editDistance(asked, fold(t.key.String())), 1+editDistance(asked, fold(own))); {
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

// editDistance is Levenshtein's, or 4 where it is at least that: nobody means a name that far away.
func editDistance(a, b string) int {
	const far = 4
	if d := len(a) - len(b); d >= far || d <= -far {
		return far
	}
	var rows [2][3 * MaxToolName]int
	if len(b) >= len(rows[0]) {
		return far
	}
	prev, row := rows[0][:len(b)+1], rows[1][:len(b)+1]
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		best := row[0]
		for j := range len(b) {
			cost := prev[j]
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, prev[j+1]+1, row[j]+1)
			best = min(best, row[j+1])
		}
		if best >= far {
			return far
		}
		prev, row = row, prev
	}
	return min(far, prev[len(b)])
}
