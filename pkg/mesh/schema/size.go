package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp/syntax"
	"strconv"
	"strings"
)

// The limits of a schema, and of the cost of checking arguments against it, in steps: a core does about ten million
// steps per second.
const (
	maxSchemaDepth = 64
	maxSubschemas  = 10_000 // after following $ref
	maxPatterns    = 20_000 // instructions of all patterns together
	maxCost        = 20e6   // of the patterns
	maxChecks      = 1e6    // of values; the library keeps a fault, of some 200 bytes, for each that does not fit
	maxExponent    = 400    // of a number in a schema; the library computes with all its digits
)

// schemaSize determines the cost of checking against a schema.
type schemaSize struct {
	subschemas int // with every $ref followed, once per path
	loops      int // $refs to an enclosing schema
	patterns   int // instructions of the regular expressions
}

// admits reports whether an instance with a text of this many bytes can be checked within the limits. With recursion, the depth
// of the arguments matters: each level may be visited once per loop, for each visit of the level above.
func (s schemaSize) admits(instance any, bytes int) bool {
	values, depth := extent(instance)
	visits := math.Pow(max(1, float64(s.loops)), float64(depth))
	return float64(s.subschemas)*float64(values)*visits <= maxChecks && float64(s.patterns)*float64(bytes) <= maxCost
}

// admitsText reports the same of a text before memory is needed for its values, from the commas outside of strings.
func (s schemaSize) admitsText(args []byte) bool {
	values, inString := 1, false
	for i := 0; i < len(args); i++ {
		switch c := args[i]; {
		case c == '"':
			inString = !inString
		case c == '\\':
			i++
		case c == ',' && !inString:
			values++
		}
	}
	return float64(s.subschemas)*float64(values) <= maxChecks
}

// extent counts the values in v, and its levels. A number counts as one value for ten of its digits, because the library
// computes with all of them: 1e999999 has a million.
func extent(v any) (values, depth int) {
	add := func(e any) {
		n, d := extent(e)
		values += n
		depth = max(depth, d)
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			add(e)
		}
	case map[string]any:
		for _, e := range v {
			add(e)
		}
	case json.Number:
		values = digits(v) / 10
	}
	return values + 1, depth + 1
}

// digits estimates how many digits n has without an exponent.
func digits(n json.Number) int {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(n)), "e")
	const most = 1 << 28 // so that sums do not overflow
	shift, err := strconv.Atoi(exponent)
	if exponent != "" && err != nil || shift > most || shift < -most {
		shift = most
	}
	return len(mantissa) + max(shift, -shift)
}

// isBounded reports whether a schema can be compiled in bounded memory. schemas counts its parts.
func isBounded(v any, depth int, schemas *int) bool {
	ok := depth <= maxSchemaDepth
	switch v := v.(type) {
	case json.Number:
		ok = ok && digits(v) <= maxExponent
	case []any:
		for _, e := range v {
			ok = ok && isBounded(e, depth+1, schemas)
		}
	case map[string]any:
		*schemas++
		for _, e := range v {
			ok = ok && isBounded(e, depth+1, schemas)
		}
	}
	return ok && *schemas <= maxSubschemas
}

// measureSchema determines the size of a schema. It fails if the cost cannot be limited: if a reference is not a pointer
// into the document, or if a part of the schema has its own base for pointers.
func measureSchema(doc any) (schemaSize, error) {
	m := measure{doc: doc, open: map[string]bool{}}
	err := m.node(doc, 0)
	return m.size, err
}

type measure struct {
	doc  any
	size schemaSize
	open map[string]bool // references being followed

	visits int // of values
}

// maxVisits limits the values that are looked at, those behind a reference each time.
const maxVisits = 1_000_000

// drafts are the dialects in which "#/…" has the meaning that follow implements, and $id renames a schema.
var drafts = []string{"draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema"}

func (m *measure) node(v any, depth int) error {
	if depth > maxSchemaDepth {
		return fmt.Errorf("its schema is nested deeper than %d", maxSchemaDepth)
	}
	if m.visits++; m.visits > maxVisits {
		return fmt.Errorf("its schema has more than %d values when every $ref is followed", maxVisits)
	}
	switch v := v.(type) {
	case json.Number:
		if digits(v) > maxExponent {
			return fmt.Errorf("its schema has the number %.80s", v)
		}
	case []any:
		m.size.subschemas += len(v) / 10 // of an enum, an argument is compared with every element
		for _, e := range v {
			if err := m.node(e, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if m.size.subschemas++; m.size.subschemas > maxSubschemas {
			return fmt.Errorf("its schema has more than %d subschemas when every $ref is followed", maxSubschemas)
		}
		for key, e := range v {
			if err := m.member(key, e, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measure) member(key string, v any, depth int) error {
	text, ok := v.(string)
	if !ok {
		if patterns, ok := v.(map[string]any); ok && key == "patternProperties" {
			for p := range patterns {
				if err := m.pattern(p); err != nil {
					return err
				}
			}
		}
		return m.node(v, depth+1)
	}
	switch key {
	case "$ref":
		return m.follow(text, depth)
	case "pattern":
		return m.pattern(text)
	case "$dynamicRef", "$recursiveRef":
		return fmt.Errorf("its schema uses %s", key)
	case "$id":
		if depth > 0 {
			return fmt.Errorf("its schema has a part with an $id, %.80q", text)
		}
	case "$schema":
		known := depth == 0 && contains(drafts, strings.TrimSuffix(text, "#"))
		if !known {
			return fmt.Errorf("its schema is of the dialect %.80q", text)
		}
	}
	return nil
}

func contains(suffixes []string, s string) bool {
	for _, suffix := range suffixes {
		if strings.HasSuffix(s, suffix) {
			return true
		}
	}
	return false
}

func (m *measure) follow(ref string, depth int) error {
	if m.open[ref] {
		m.size.loops++
		return nil
	}
	target, ok := pointed(m.doc, ref)
	if !ok {
		return fmt.Errorf("its schema refers to %.80q, which is not a pointer to a part of it", ref)
	}
	m.open[ref] = true
	defer delete(m.open, ref)
	return m.node(target, depth+1)
}

// pattern counts the instructions of a regular expression before it is compiled: a{1000} has 1000.
func (m *measure) pattern(text string) error {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil // the compiler will refuse it
	}
	if m.size.patterns += weight(re); m.size.patterns > maxPatterns {
		return fmt.Errorf("its schema's patterns are larger than %d instructions", maxPatterns)
	}
	return nil
}

func weight(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += weight(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, maxPatterns+1)
}

// pointed resolves a local reference; an anchor or another document is not found.
func pointed(doc any, ref string) (any, bool) {
	if ref == "#" {
		return doc, true
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	path, err := url.PathUnescape(path) // of the whole fragment, as the library does
	if err != nil {
		return nil, false
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for _, step := range strings.Split(path, "/") {
		switch d := doc.(type) {
		case map[string]any:
			if doc, ok = d[unescape.Replace(step)]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(d) {
				return nil, false
			}
			doc = d[i]
		default:
			return nil, false
		}
	}
	return doc, true
}
