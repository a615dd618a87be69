// Package nearest finds suggestions for a mistyped word: a key of a manifest, an id, the name of a tool.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// maxWord is the longest word that is compared: longer words are not typed by hand, and the time grows quadratically.
const maxWord = 256

// Word returns the candidate closest to key, at a distance of 1 for a short word and a few for a long one. The
// candidates are in lower case. ok is false if none is close enough.
func Word(key string, candidates []string) (word string, ok bool) {
	if len(key) > 64 {
		return "", false
	}
	least := 2 + len(key)/4
	for _, c := range candidates {
		if d := Distance(strings.ToLower(key), c, least); d < least {
			word, least = c, d
		}
	}
	return word, word != ""
}

// Words returns up to three candidates closest to typed, the closest first, ignoring case: those within a few edits,
// and those that contain it.
func Words(typed string, candidates []string) []string {
	type hit struct {
		word string
		d    int
	}
	var hits []hit
	if len(typed) > maxWord {
		return nil
	}
	most := 2 + len(typed)/4
	for _, w := range candidates {
		d := Distance(strings.ToLower(typed), strings.ToLower(w), most)
		if len(typed) >= 3 && strings.Contains(w, typed) {
			d = len(w) - len(typed)
		} else if d == most {
			continue
		}
		hits = append(hits, hit{w, d})
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.word, b.word)) })
	var out []string
	for _, h := range hits[:min(3, len(hits))] {
		out = append(out, h.word)
	}
	return out
}

// Distance returns the number of bytes to insert, delete, replace, or swap with the next one to turn a into b, or
// most if it is at least that; the bound ends the computation early.
func Distance(a, b string, most int) int {
	if d := len(a) - len(b); d >= most || -d >= most || len(a) > maxWord || len(b) > maxWord {
		return most
	}
	var rows [3][maxWord + 1]int
	before, prev, row := rows[0][:len(b)+1], rows[1][:len(b)+1], rows[2][:len(b)+1]
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, row = prev, row, before
		row[0] = i
		best := i
		for j := 1; j <= len(b); j++ {
			change := prev[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, prev[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			best = min(best, row[j])
		}
		if best > most { // one more than most: a swap looks back two rows
			return most
		}
	}
	return min(most, row[len(b)])
}
