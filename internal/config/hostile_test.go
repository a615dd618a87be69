package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestHostile checks that Parse is fast on hostile files; the YAML parser alone would take minutes for some of them.
// A file may be sixteen times as large, and then takes sixteen times as long. The limit allows for a busy machine.
func TestHostile(t *testing.T) {
	const size = MaxFile / 16
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	numbered := func(format string, n int) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	stairs := func(step string) string {
		var b strings.Builder
		for i := 0; b.Len() < size/2; i++ {
			b.WriteString(strings.Repeat(" ", i) + step + "\n")
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"lists in lists":     fill("["),
		"lists over lines":   fill("[\n"),
		"maps in maps":       fill("{a: "),
		"dashes":             fill("- "),
		"dashes in a list":   "[" + fill("- "),
		"colons":             fill("a: "),
		"colons in a map":    "{" + fill("a: "),
		"explicit keys":      fill("? "),
		"explicit key lines": fill("?\n"),
		"anchors":            fill("&a "),
		"anchor lines":       fill("&a\n"),
		"tags":               fill("!t "),
		"aliases":            "a: &a x\nb: [" + fill("*a, "),
		"billion laughs":     "a: &a [x,x]\n" + numbered("b%[1]d: &b%[1]d [*a,*a]\n", size),
		"merges":             fill("<<: *a\n"),
		"stairs of keys":     stairs("a:"),
		"stairs of items":    stairs("-"),
		"keys":               numbered("k%d: 1\n", size),
		"five thousand keys": numbered("k%d: 1\n", 43_000),
		"flow keys":          "{" + numbered("k%d: 1, ", size) + "}",
		"bare flow keys":     "{" + numbered("k%d, ", size) + "}",
		"five thousand bare": "extensions: {" + numbered("k%d, ", 33_000) + "}",
		"five thousand ids":  "extensions: {disabled: [" + numbered("k%d, ", 33_000) + "]}",
		"five thousand bad":  "extensions: {disabled: [" + numbered("K%d, ", 33_000) + "]}",
		"long bad ids":       "extensions: {disabled: [" + strings.Repeat(strings.Repeat("K", size/5000)+", ", 4990) + "]}",
		"entries":            "extensions:\n  entries:\n" + numbered("    k%d: {replicas: 0}\n", 125_000),
		"items":              "extensions:\n  disabled:\n" + fill("    - a\n"),
		"documents":          fill("---\n"),
		"comments":           fill("# c\n") + "extensions:\n",
		"comment":            "#" + fill("c"),
		"blank lines":        "extensions:\n" + fill("\n"),
		"blanks":             "a:" + fill(" "),
		"tabs":               "a:" + fill("\t"),
		"a long word":        "extensions: {skills_dir: " + fill("x"),
		"a long key":         fill("x") + ": 1",
		"escapes":            "extensions: {skills_dir: \"" + strings.Repeat(`\n`, size/3) + "\"}",
		"open quote":         "a: \"" + fill("x "),
		"open single quote":  "a: '" + fill("x\n "),
		"literal":            "a: |\n" + fill("  x\n"),
		"folded":             "a: >\n" + fill("  x\n"),
		"plain over lines":   "a: b\n" + fill("  x\n"),
		"percent":            fill("%"),
		"directives":         fill("%YAML 1.2\n"),
		"brackets closed":    fill("]"),
		"digits":             "extensions: {max_depth: " + fill("1"),
		"dots":               "extensions: {max_depth: 1" + fill("."),
		"nul":                fill("\x00"),
		"carriage returns":   fill("\r"),
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			Parse("x", []byte(text))
			if d := time.Since(start); d > 30*time.Second {
				t.Errorf("took %s", d)
			}
		})
	}
}
