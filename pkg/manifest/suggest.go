package manifest

import "strings"

// legalID converts an invalid id to a valid one; "" if that is not possible.
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
