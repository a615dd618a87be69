package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// ForeignPattern returns a pattern of a JSON schema that JavaScript does not compile. Clients written in it compile the schemas of all
// tools when they read the list, in the mode that the flag u selects, which refuses what other languages allow.
func ForeignPattern(schema json.RawMessage) (pattern string, found bool) {
	if !bytes.Contains(schema, []byte("attern")) && !bytes.Contains(schema, []byte(`\u`)) {
		return "", false
	}
	var v any
	if json.Unmarshal(schema, &v) != nil {
		return "", false
	}
	return foreignPattern(v)
}

func foreignPattern(v any) (pattern string, found bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if pattern, found = foreignPattern(e); found {
				return pattern, true
			}
		}
	case map[string]any:
		if p, ok := v["pattern"].(string); ok && !isJavaScript(p) {
			return p, true
		}
		of, _ := v["patternProperties"].(map[string]any)
		for p := range of {
			if !isJavaScript(p) {
				return p, true
			}
		}
		for key, e := range v {
			if slices.Contains([]string{"const", "enum", "default", "examples"}, key) { // these are values
				continue
			}
			if pattern, found = foreignPattern(e); found {
				return pattern, true
			}
		}
	}
	return "", false
}

var (
	quantifier = regexp.MustCompile(`^\{(\d+)(?:,(\d*))?\}`)
	around     = regexp.MustCompile(`^\(\?<?[=!]`)
	named      = regexp.MustCompile(`^\(\?<([A-Za-z_$][\w$]*)>`)
	escape     = regexp.MustCompile(`^\\(?:[\^$\\.*+?()\[\]{}|/dDwWsSbBfnrtv0]|x[0-9A-Fa-f]{2})`) // that Go has, too
	code       = regexp.MustCompile(`^\\(?:c([A-Za-z])|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\})`)
	other      = regexp.MustCompile(`^\\(?:[pP]\{([A-Za-z0-9_=]+)\}|k<([^>]+)>|([1-9]\d*))`)
)

// isJavaScript reports whether JavaScript compiles a pattern. What Go writes differently or does not have is translated; the rules that are
// common to all languages are those of Go.
func isJavaScript(p string) bool {
	t := translation{names: map[string]bool{}, refers: map[string]bool{}}
	for len(p) > 0 {
		n, as := t.next(p)
		if n == 0 {
			return false
		}
		t.class = t.class && p[0] != ']' || !t.class && p[0] == '['
		t.out.WriteString(cmp.Or(as, p[:n]))
		p = p[n:]
	}
	for name := range t.refers {
		if !t.names[name] {
			return false
		}
	}
	_, err := syntax.Parse(t.out.String(), syntax.Perl)
	if e, ok := errors.AsType[*syntax.Error](err); ok && (e.Code == syntax.ErrInvalidRepeatSize || e.Code == syntax.ErrLarge || e.Code == syntax.ErrNestingDepth) {
		err = nil // limits of Go
	}
	return err == nil && t.highest <= t.groups
}

// translation is a pattern of JavaScript in Go's syntax.
type translation struct {
	out     strings.Builder
	class   bool // inside of [ and ]
	groups  int  // that are counted
	highest int  // number of a group that is referred to
	names   map[string]bool
	refers  map[string]bool
}

// next returns how many bytes the next part of a pattern has, 0 if JavaScript does not have it, and what it is in Go if that differs.
func (t *translation) next(p string) (n int, as string) {
	switch {
	case t.class && strings.HasPrefix(p, `\-`):
		return 2, ""
	case t.class && strings.HasPrefix(p, `\b`):
		return 2, `\x08`
	case p[0] == '\\':
		return t.escape(p)
	case t.class:
	case strings.Contains("{}]", p[:1]):
		return quantify(p)
	case around.MatchString(p):
		return len(around.FindString(p)), "(?:"
	case strings.HasPrefix(p, "(?:"):
		return 3, ""
	case strings.HasPrefix(p, "(?"):
		m := named.FindStringSubmatch(p)
		if m == nil || t.names[m[1]] {
			return 0, ""
		}
		t.groups++
		t.names[m[1]] = true
		return len(m[0]), "("
	case p[0] == '(':
		t.groups++
	}
	return 1, ""
}

// escape is next for what begins with a backslash.
func (t *translation) escape(p string) (n int, as string) {
	if n := len(escape.FindString(p)); n > 0 {
		return n, ""
	}
	if m := code.FindStringSubmatch(p); m != nil {
		if m[1] != "" {
			return len(m[0]), fmt.Sprintf(`\x{%x}`, m[1][0]&31)
		}
		r, _ := strconv.ParseUint(m[2]+m[3], 16, 32)
		if low := code.FindStringSubmatch(p[len(m[0]):]); m[2] != "" && low != nil && low[2] != "" {
			l, _ := strconv.ParseUint(low[2], 16, 32)
			if both := utf16.DecodeRune(rune(r), rune(l)); both != unicode.ReplacementChar {
				return len(m[0]) + len(low[0]), fmt.Sprintf(`\x{%x}`, both)
			}
		}
		if r > unicode.MaxRune {
			return 0, ""
		}
		return len(m[0]), fmt.Sprintf(`\x{%x}`, r)
	}
	m := other.FindStringSubmatch(p)
	if m == nil || m[1] != "" && !isProperty(m[1]) || t.class && m[1] == "" {
		return 0, ""
	}
	if m[2] != "" {
		t.refers[m[2]] = true
	}
	number, _ := strconv.Atoi(m[3])
	t.highest = max(t.highest, number)
	return len(m[0]), "a"
}

// quantify is next for braces. Go has a limit of 1000.
func quantify(p string) (n int, as string) {
	m := quantifier.FindStringSubmatch(p)
	if m == nil {
		return 0, ""
	}
	least, _ := strconv.Atoi(m[1])
	most, err := strconv.Atoi(m[2])
	switch {
	case err == nil && most < least:
		return 0, ""
	case least > 1000 || most > 1000:
		return len(m[0]), "{1,2}"
	}
	return len(m[0]), ""
}

// isProperty reports whether \p{name} exists. Of the short names of scripts, which have four letters, all count as known.
func isProperty(name string) bool {
	key, value, ok := strings.Cut(name, "=")
	_, category := unicode.Categories[cmp.Or(value, key)]
	_, alias := unicode.CategoryAliases[cmp.Or(value, key)]
	_, script := unicode.Scripts[value]
	switch {
	case !ok:
		return category || alias || strings.HasPrefix(name, "Emoji") || slices.Contains([]string{"ASCII", "Alphabetic", "Any", "Uppercase", "Lowercase", "White_Space"}, name)
	case key == "General_Category" || key == "gc":
		return category || alias
	}
	return (script || len(value) == 4) && slices.Contains([]string{"Script", "sc", "Script_Extensions", "scx"}, key)
}
