// Package nearest finds what somebody may have meant who typed a word that is none: a key of a manifest, an id, the
// name of a tool.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// maxWord is the longest word that is compared: nobody mistypes more, and the time goes with the square.
const maxWord = 256

// Word is the one of candidates, which are in lower case, that key is most likely meant to be: one slip away in a
// short word, a few in a long one. ok is false if there is none.
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

// Words are up to three of candidates that asked may be meant to be, whatever their case, the nearest first: those a
// few slips away, and those that contain it.
func Words(asked string, candidates []string) []string {
	type hit struct {
		word string
		d    int
	}
	var hits []hit
	if len(asked) > maxWord {
		return nil
	}
	for _, w := range candidates {
		d := Distance(strings.ToLower(asked), strings.ToLower(w), maxWord)
		if d > 1+len(asked)/4 && !(len(asked) >= 3 && strings.Contains(w, asked)) {
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

// Distance is how many bytes have to be put in, left out, replaced, or exchanged with their neighbour to make a of b;
// or most, if it is that many or more, which is found out sooner.
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
		if best > most { // one more than most: an exchange looks back two rows
			return most
		}
	}
	return min(most, row[len(b)])
}
