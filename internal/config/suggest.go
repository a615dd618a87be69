package config

import "strings"

// nearest is the candidate that key may have been meant to be.
func nearest(key string, candidates []string) (string, bool) {
	if len(key) > 64 {
		return "", false
	}
	best, least := "", 2+len(key)/4 // one slip in a short word, a few in a long one
	for _, c := range candidates {
		if d := distance(strings.ToLower(key), c); d < least {
			best, least = c, d
		}
	}
	return best, best != ""
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			d := min(row[j], row[j+1]) + 1
			if a[i] == b[j] {
				d = min(d, diagonal)
			}
			diagonal, row[j+1] = row[j+1], min(d, diagonal+1)
		}
	}
	return row[len(b)]
}
