package mcp

import (
	"bytes"
	"encoding/json"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
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
	group      = regexp.MustCompile(`^\(\?(?:[:=!]|<[=!]|<[A-Za-z_$][\w$]*>)`)
	escape     = regexp.MustCompile(`^\\(?:[\^$\\.*+?()\[\]{}|/dDwWsSbBfnrtv\d]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|k<|[pP]\{(?:[A-Z][a-z]?|\w+=\w+|ASCII|Alphabetic|Any|Emoji\w*|Letter|Number|Uppercase|Lowercase|White_Space)\})`)
	beyondGo   = regexp.MustCompile(`\(\?<?[=!]|\\[1-9kucpP]`)
)

// isJavaScript reports whether JavaScript compiles a pattern. The rules that are common to all languages are those of Go, as far as Go has
// the pattern's features.
func isJavaScript(p string) bool {
	if _, err := syntax.Parse(p, syntax.Perl); err != nil && !beyondGo.MatchString(p) {
		return false
	}
	class := false
	for len(p) > 0 {
		n := 1
		switch {
		case class && strings.HasPrefix(p, `\-`):
			n = 2
		case p[0] == '\\':
			if n = len(escape.FindString(p)); n == 0 {
				return false
			}
		case class:
			class = p[0] != ']'
		case p[0] == '[':
			class = true
		case p[0] == '{':
			if n = len(quantifier.FindString(p)); n == 0 {
				return false
			}
		case p[0] == '}', p[0] == ']', strings.HasPrefix(p, "(?") && !group.MatchString(p):
			return false
		}
		p = p[n:]
	}
	return true
}
