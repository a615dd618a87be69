package mcp

import (
	"regexp"
	"strings"
)

// Template is a URI template (RFC 6570, levels 1 to 3) to which URIs are compared.
type Template struct {
	literal string // what its URIs begin with
	uris    *regexp.Regexp
}

// maxExpressions limits the expressions of a template.
const maxExpressions = 50

// expressions are the URIs' parts for an expression, by its operator. A value of the simple form has no slash.
var expressions = map[byte]string{
	0: `[^/?#]+`, '+': `.+`, '#': `(#.*)?`, '.': `(\.[^/?#]*)?`, '/': `(/[^?#]*)?`, ';': `(;[^/?#]*)?`, '?': `(\?[^#]*)?`, '&': `(&[^#]*)?`,
}

// ParseTemplate reads a URI template; ok is false if it is malformed.
func ParseTemplate(text string) (t *Template, ok bool) {
	var uris strings.Builder
	t = &Template{}
	for n := 0; ; n++ {
		literal, rest, found := strings.Cut(text, "{")
		if strings.Contains(literal, "}") {
			return nil, false
		}
		if n == 0 {
			t.literal = literal
		}
		uris.WriteString(regexp.QuoteMeta(literal))
		if !found {
			break
		}
		expression, after, closed := strings.Cut(rest, "}")
		if !closed || expression == "" || n == maxExpressions {
			return nil, false
		}
		part, ok := expressions[expression[0]]
		if !ok {
			part = expressions[0]
			if strings.HasSuffix(expression, "*") { // FastMCP's for several parts of a path
				part = expressions['+']
			}
		}
		uris.WriteString(part)
		text = after
	}
	var err error
	t.uris, err = regexp.Compile(`(?s)\A` + uris.String() + `\z`)
	return t, err == nil
}

// Matches reports whether a URI can be one of the template's. literal is the length of the text before the first
// expression: of several templates, the one with the longest is meant.
func (t *Template) Matches(uri string) (literal int, ok bool) {
	return len(t.literal), strings.HasPrefix(uri, t.literal) && t.uris.MatchString(uri)
}
