// Package words builds the parts of sentences for people: numbers with their noun, and lists.
package words

import (
	"fmt"
	"strings"
	"time"
)

// Plural is "1 tool", "2 tools".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Or is "a", "a or b", "a, b or c".
func Or(words []string) string {
	n := len(words)
	if n < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
}

// Clip is a copy of the first n bytes of a text, and "…" if there is more. It is valid UTF-8.
func Clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return strings.ToValidUTF8(strings.Clone(s), "?")
}

// Some is the first words of a list, and how many more there are.
func Some(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
}

// Ago is a rough time span for people.
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	switch d := max(0, time.Since(t)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}
