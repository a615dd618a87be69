package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// MaxFile is the maximum size of a configuration in bytes.
const MaxFile = 1 << 20

// file is the text of an extensions.yaml, its syntax tree and the findings so far.
type file struct {
	path  string
	text  string // without a byte order mark
	lines []int  // the offset of each line's start
	top   *mapping
	diags []manifest.Diagnostic
	last  place // the last result of offset
}

// open parses text. It uses the syntax tree directly, because decoding into Go types stops at the first value of a
// wrong type. ok is false if the text cannot be parsed, which has been reported.
func open(path, text string) (f *file, ok bool) {
	f = &file{path: path, text: strings.TrimPrefix(text, "\xef\xbb\xbf"), lines: []int{0}}
	for i := range len(f.text) {
		if f.text[i] == '\n' {
			f.lines = append(f.lines, i+1)
		}
	}
	if len(text) > MaxFile {
		f.report(nil, "", "the file has more than %d bytes (1 MiB)", MaxFile)
		return f, false
	}
	if !utf8.ValidString(f.text) {
		f.report(nil, "", "the file is not UTF-8; save it as UTF-8")
		return f, false
	}
	// The parser counts some lines that end in \r\n twice. The lines and columns of the converted text match f.text.
	unix := strings.ReplaceAll(f.text, "\r\n", "\n")
	if before, _, lone := strings.Cut(unix, "\r"); lone {
		f.report(nil, "", "line %d contains a carriage return that is not a line end; end lines with \\n or \\r\\n", strings.Count(before, "\n")+1)
		return f, false
	}
	doc, err := parse(unix)
	if syntax := yaml.Error(nil); errors.As(err, &syntax) && syntax.GetToken() != nil {
		f.report(syntax.GetToken(), "", "syntax: %s", syntax.GetMessage())
		return f, false
	} else if err != nil {
		f.report(nil, "", "syntax: %v", err)
		return f, false
	}
	if len(doc.Docs) > 1 {
		f.report(doc.Docs[1].Start, "", "a second YAML document; want one")
		return f, false
	}
	var body ast.Node
	if len(doc.Docs) == 1 {
		body = doc.Docs[0].Body
	}
	f.top = f.mapping("", body)
	return f, true
}

func parse(text string) (doc *ast.File, err error) {
	// The parser panics on some malformed texts.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML parser cannot read this: %v", r)
		}
	}()
	tokens := lexer.Tokenize(text)
	if at, why := bounded(tokens); why != "" {
		return nil, &yaml.SyntaxError{Message: why, Token: at}
	}
	// mapping reports duplicate keys, all of them and together with other faults.
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// The parser is recursive, and its time grows quadratically with the depth and with the number of keys, so texts over
// these limits are refused before parsing. Valid files are at most five levels deep.
const (
	maxNesting = 32
	maxEntries = 5_000 // keys and items
)

// bounded returns where and why the parser would need minutes or a deep stack for these tokens; "" if it would not.
func bounded(tokens token.Tokens) (at *token.Token, why string) {
	var indents []int          // columns of the blocks around the line
	line, run, flow := 0, 0, 0 // run: nested entries that began on the same line
	entries, oddities := 0, 0
	for _, t := range tokens {
		if flow == 0 && t.Position.Line != line {
			run = 0
			for len(indents) > 0 && indents[len(indents)-1] >= t.Position.Column {
				indents = indents[:len(indents)-1]
			}
			indents = append(indents, t.Position.Column)
		}
		line = t.Position.Line
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.CollectEntryType:
			entries, run = entries+1, 0
		case token.SequenceEntryType, token.MappingValueType:
			entries, run = entries+1, run+1
		case token.MappingKeyType, token.AnchorType, token.AliasType, token.TagType, token.DirectiveType, token.DocumentHeaderType:
			oddities++
		}
		switch {
		case len(indents)+run+flow > maxNesting:
			return t, fmt.Sprintf("nested more than %d deep", maxNesting)
		case oddities > maxNesting:
			return t, fmt.Sprintf("more than %d anchors, tags, explicit keys and documents; want none", maxNesting)
		case entries > maxEntries:
			return t, fmt.Sprintf("more than %d keys and items", maxEntries)
		}
	}
	return nil, ""
}

// report adds an Error about the key at a token.
func (f *file) report(at *token.Token, key, format string, args ...any) {
	f.add(manifest.Error, at, key, fmt.Sprintf(format, args...))
}

func (f *file) add(level manifest.Level, at *token.Token, key, message string) {
	d := manifest.Diagnostic{Level: level, Path: f.path, Key: key, Message: message}
	if at != nil && at.Position != nil {
		d.Line = min(at.Position.Line, len(f.lines))
		d.Column = f.offset(at) - f.lines[d.Line-1] + 1
	}
	f.diags = append(f.diags, d)
}

// done returns the findings, sorted by position.
func (f *file) done() []manifest.Diagnostic {
	slices.SortStableFunc(f.diags, func(a, b manifest.Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return f.diags
}

// place is a line and column, both from 1 and in characters, and the offset of that position.
type place struct{ line, column, offset int }

// offset returns where a token begins in the text. The parser's own offsets are unreliable; its lines and columns are not.
func (f *file) offset(t *token.Token) int {
	if t.Position.Line > len(f.lines) {
		return len(f.text)
	}
	at := place{t.Position.Line, 1, f.lines[t.Position.Line-1]}
	if f.last.line == at.line && f.last.column <= t.Position.Column {
		at = f.last // start from the last result: otherwise many faults in one long line would take quadratic time
	}
	for ; at.column < t.Position.Column && at.offset < len(f.text) && f.text[at.offset] != '\n'; at.column++ {
		_, n := utf8.DecodeRuneInString(f.text[at.offset:])
		at.offset += n
	}
	f.last = at
	return at.offset
}

// mapping reads one mapping of the file. Its accessors set the values that are present, leave others unchanged, and
// report invalid ones; unknown reports the keys that no accessor has read.
type mapping struct {
	*file
	path  string
	node  *ast.MappingNode // nil if it is absent, null or not a mapping
	pairs []pair
	known []string
}

// pair is one key with its value.
type pair struct {
	name  string
	key   *token.Token
	colon *token.Token
	value ast.Node     // nil for null
	null  *token.Token // the token of a null, explicit or not
}

// mapping reads a node that should be a mapping. Null is an empty one.
func (f *file) mapping(path string, n ast.Node) *mapping {
	m := &mapping{file: f, path: path}
	var ok bool
	if n == nil || n.Type() == ast.NullType {
		return m
	} else if m.node, ok = n.(*ast.MappingNode); !ok {
		f.report(n.GetToken(), path, "is %s; want keys and values", kindOf(n))
		return m
	}
	for _, v := range m.node.Values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			f.report(v.Key.GetToken(), path, "a key is %s; want a plain word", kindOf(v.Key))
			continue
		}
		if i := slices.IndexFunc(m.pairs, func(p pair) bool { return p.name == key.Value }); i >= 0 {
			f.report(v.Key.GetToken(), join(path, key.Value), "appears twice, first in line %d; keep one", m.pairs[i].key.Position.Line)
			continue
		}
		p := pair{name: key.Value, key: key.GetToken(), colon: v.Start, value: v.Value}
		if v.Value != nil && v.Value.Type() == ast.NullType {
			p.value, p.null = nil, v.Value.GetToken()
		}
		m.pairs = append(m.pairs, p)
	}
	return m
}

// find returns the pair of a key and marks the key as known.
func (m *mapping) find(key string) (pair, bool) {
	m.known = append(m.known, key)
	i := slices.IndexFunc(m.pairs, func(p pair) bool { return p.name == key })
	if i < 0 {
		return pair{}, false
	}
	return m.pairs[i], true
}

// value returns the value of a key, nil if it has none.
func (m *mapping) value(key string) ast.Node {
	p, _ := m.find(key)
	return p.value
}

// sub returns the mapping at key.
func (m *mapping) sub(key string) *mapping { return m.mapping(join(m.path, key), m.value(key)) }

// one returns the first of keys that is set.
func (m *mapping) one(keys ...string) string {
	for _, k := range keys {
		if m.value(k) != nil {
			return k
		}
	}
	return ""
}

// fault reports an error about key, which is set; warn reports a warning, with which the file can still be used.
func (m *mapping) fault(key, format string, args ...any) {
	p, _ := m.find(key)
	m.report(p.key, join(m.path, key), format, args...)
}

func (m *mapping) warn(key, message string) {
	p, _ := m.find(key)
	m.add(manifest.Warn, p.key, join(m.path, key), message)
}

// unknown reports the keys that no accessor has read.
func (m *mapping) unknown() {
	slices.Sort(m.known)
	m.known = slices.Compact(m.known)
	for _, p := range m.pairs {
		if slices.Contains(m.known, p.name) {
			continue
		}
		hint := "known keys: " + strings.Join(m.known, ", ")
		if near, ok := nearest.Word(p.name, m.known); ok {
			hint = "did you mean " + near + "?"
		} else if m.path == "" {
			hint = "all keys belong below extensions"
		}
		m.report(p.key, join(m.path, p.name), "unknown key; %s", hint)
	}
}

// kindOf describes a node's kind.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.IntegerNode:
		return "a whole number"
	case *ast.FloatNode:
		return "a number"
	case *ast.InfinityNode, *ast.NanNode:
		return "infinite or not a number"
	case *ast.BoolNode:
		return "a boolean"
	case *ast.NullNode:
		return "null"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode:
		return "a mapping"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias, which is not supported"
	}
	return "a tag or another construct, which is not supported"
}

// join returns the path of key below path.
func join(path, key string) string {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == '.' || r == '"' }) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
