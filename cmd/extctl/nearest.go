package main

import (
	"cmp"
	"slices"
	"strings"
)

// nearest returns up to three of words that somebody who typed asked may have meant.
func nearest(asked string, words []string) []string {
	type hit struct {
		word string
		d    int
	}
	var hits []hit
	for _, w := range words {
		d := distance(strings.ToLower(asked), strings.ToLower(w))
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

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// orList is "a", "a or b", "a, b or c".
func orList(words []string) string {
	n := len(words)
	if n < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
}
