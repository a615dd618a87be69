package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
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
	quantifier = regexp.MustCompile(`^\{\d+(?:,\d*)?\}`)
	around     = regexp.MustCompile(`^\(\?<?[=!]`)
	name       = regexp.MustCompile(`^\(\?<([A-Za-z_$][\w$]*)>`)
	escape     = regexp.MustCompile(`^\\(?:[\^$\\.*+?()\[\]{}|/dDwWsSbBfnrtv0]|x[0-9A-Fa-f]{2})`) // that Go has, too
	other      = regexp.MustCompile(`^\\(?:c[A-Za-z]|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|[pP]\{([A-Za-z0-9_=]+)\}|k<([^>]*)>|([1-9]\d*))`)
)

// isJavaScript reports whether JavaScript compiles a pattern. What Go does not have is replaced by something like it; the rules that are
// common to all languages are those of Go.
func isJavaScript(p string) bool {
	var out strings.Builder
	groups, highest, class := 0, 0, false
	names, refers := map[string]bool{}, map[string]bool{}
	for len(p) > 0 {
		n, as := 1, "" // how many bytes are read; what stands for them in Go
		switch {
		case class && strings.HasPrefix(p, `\-`):
			n = 2
		case class && strings.HasPrefix(p, `\b`):
			n, as = 2, "a"
		case escape.MatchString(p):
			n = len(escape.FindString(p))
		case p[0] == '\\':
			m := other.FindStringSubmatch(p)
			if m == nil || m[1] != "" && !isProperty(m[1]) || class && m[2]+m[3] != "" || m[0] == `\k<>` {
				return false
			}
			if m[2] != "" {
				refers[m[2]] = true
			}
			number, _ := strconv.Atoi(m[3])
			n, as, highest = len(m[0]), "a", max(highest, number)
		case class:
			class = p[0] != ']'
		case p[0] == '[':
			class = true
		case strings.Contains("{}]", p[:1]):
			if n = len(quantifier.FindString(p)); n == 0 {
				return false
			}
		case around.MatchString(p):
			n, as = len(around.FindString(p)), "(?:"
		case strings.HasPrefix(p, "(?:"):
			n = 3
		case strings.HasPrefix(p, "(?"):
			m := name.FindStringSubmatch(p)
			if m == nil {
				return false
			}
			groups++
			names[m[1]] = true
			n, as = len(m[0]), "("
		case p[0] == '(':
			groups++
		}
		out.WriteString(cmp.Or(as, p[:n]))
		p = p[n:]
	}
	for name := range refers {
		if !names[name] {
			return false
		}
	}
	_, err := syntax.Parse(out.String(), syntax.Perl)
	if e, ok := errors.AsType[*syntax.Error](err); ok && (e.Code == syntax.ErrInvalidRepeatSize || e.Code == syntax.ErrLarge || e.Code == syntax.ErrNestingDepth) {
		err = nil // limits of Go
	}
	return err == nil && highest <= groups
}

// isProperty reports whether \p{name} exists.
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
	return script && slices.Contains([]string{"Script", "sc", "Script_Extensions", "scx"}, key)
}
