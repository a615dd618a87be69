package manifest

import "strings"

// nearest is the candidate with the smallest edit distance to key, if it is near enough to be what was meant.
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

// distance is the number of insertions, deletions, replacements and swaps of neighbours that make a into b.
func distance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, row = prev, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := prev[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, prev[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// legalID makes an id out of what somebody wrote instead of one; "" when nothing of it can be used.
func legalID(s string, limit int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(clip(s, limit)) {
		switch {
		case r >= 'a' && r <= 'z', r == '_' && b.Len() > 0, r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.TrimRight(b.String()[:min(b.Len(), limit)], "-")
}
