package document

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// YAML decodes text, which is the document's text or a part of it with the same line numbers. It uses the parser's
// syntax tree instead of decoding, because the tree has the positions and does not expand aliases, whose expansion has
// no limit. Anchors, aliases and tags are unsupported values.
func (d *Doc) YAML(text string) (*Table, bool) {
	d.words = words{"a whole number", "a number", "a list", "a mapping", "a string; put it in quotes",
		"a list of strings, such as [a, b]", "keys and values"}
	// The parser counts some lines that end in \r\n twice. The lines and columns of the converted text are the same.
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if before, _, lone := strings.Cut(text, "\r"); lone {
		d.Fault("", "line %d contains a carriage return that is not a line end; end lines with \\n or \\r\\n", strings.Count(before, "\n")+1)
		return nil, false
	}
	v, body, err := d.parseYAML(text)
	syntax, isSyntax := errors.AsType[yaml.Error](err)
	over, isOver := errors.AsType[*overError](err)
	switch {
	case err == nil:
		return d.root(v, body)
	case isOver:
		d.FaultAt(d.offset(over.at), "%s", over.what)
	case isSyntax && syntax.GetToken() != nil:
		d.FaultAt(d.offset(syntax.GetToken()), "syntax: %s", Clip(syntax.GetMessage(), 4*maxShown))
	default:
		d.Fault("", "syntax: %s", Clip(err.Error(), 4*maxShown))
	}
	return nil, false
}

// overError is more of something than a document may have.
type overError struct {
	at   *token.Token
	what string
}

func (e *overError) Error() string { return e.what }

// parseYAML returns the tree, and the offset of its root.
func (d *Doc) parseYAML(text string) (v any, body int, err error) {
	defer guard(&err) // the parser panics, or leaves gaps in its tree, on some malformed texts
	tokens := lexer.Tokenize(text)
	if at, why := bounded(tokens); why != "" {
		return nil, 0, &overError{at, why}
	}
	// pair reports duplicate keys, all of them and together with other faults.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	switch {
	case err != nil:
		return nil, 0, err
	case len(file.Docs) > 1:
		return nil, 0, &overError{file.Docs[1].Start, "a second YAML document; want one"}
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, 0, nil
	}
	root := file.Docs[0].Body
	v, err = d.yaml("", root, 0)
	return v, d.offset(root.GetToken()), err
}

// The parser is recursive, and its time grows quadratically with the depth and with the number of keys, so texts over
// these limits are refused before parsing. Valid files are at most five levels deep.
const (
	maxTokenNesting = 32
	maxEntries      = 5_000 // keys and items
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
		case len(indents)+run+flow > maxTokenNesting:
			return t, fmt.Sprintf("nested more than %d deep", maxTokenNesting)
		case oddities > maxTokenNesting:
			return t, fmt.Sprintf("more than %d anchors, tags, explicit keys and documents; want none", maxTokenNesting)
		case entries > maxEntries:
			return t, fmt.Sprintf("more than %d keys and items", maxEntries)
		}
	}
	return nil, ""
}

// yaml converts a syntax tree and records the positions.
func (d *Doc) yaml(path string, n ast.Node, depth int) (any, error) {
	if depth > maxNesting {
		return nil, &overError{n.GetToken(), ErrDeep.Error()}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		m := map[string]any{}
		lines := map[string]int{}
		for _, v := range n.Values {
			if err := d.pair(path, v, m, lines, depth); err != nil {
				return nil, err
			}
		}
		return m, nil
	case *ast.MappingValueNode:
		m := map[string]any{}
		return m, d.pair(path, n, m, map[string]int{}, depth)
	case *ast.SequenceNode:
		list := []any{}
		for i, v := range n.Values {
			at := d.offset(v.GetToken())
			sub := Element(path, i)
			if err := d.setPos(sub, at, at); err != nil {
				return nil, &overError{v.GetToken(), err.Error()}
			}
			item, err := d.yaml(sub, v, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, nil
	}
	return scalar(n), nil
}

// pair converts one key with its value. lines are the lines of the keys of m.
func (d *Doc) pair(path string, v *ast.MappingValueNode, m map[string]any, lines map[string]int, depth int) error {
	at := d.offset(v.Key.GetToken())
	key, ok := v.Key.(*ast.StringNode)
	if !ok {
		d.Faults++
		d.put(Finding{Level: d.Level, Key: path, Message: "a key is " + d.kindOf(scalar(v.Key)) + "; want a plain word"}, at)
		return nil
	}
	sub := Join(path, key.Value)
	if line, twice := lines[key.Value]; twice {
		d.Faults++
		d.put(Finding{Level: d.Level, Key: Clip(sub, 4*maxShown), Message: fmt.Sprintf("appears twice, first in line %d; keep one", line)}, at)
		return nil
	}
	lines[key.Value], _ = d.lineCol(at)
	value := at
	if v.Value != nil {
		value = d.offset(v.Value.GetToken())
	}
	if err := d.setPos(sub, at, value); err != nil {
		return &overError{v.Key.GetToken(), err.Error()}
	}
	var err error
	m[key.Value], err = d.yaml(sub, v.Value, depth+1)
	return err
}

// scalar converts a node without children.
func scalar(n ast.Node) any {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		switch v := n.Value.(type) {
		case int64:
			return v
		case uint64:
			return int64(min(v, math.MaxInt64))
		}
		return int64(math.MaxInt64)
	case *ast.FloatNode:
		return n.Value
	case *ast.NullNode, nil:
		return nil
	case *ast.InfinityNode, *ast.NanNode:
		return unsupported("infinite or not a number")
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return unsupported("an anchor or alias, which is not supported")
	}
	return unsupported("a tag or another construct, which is not supported")
}

// place is a line and column, both from 1 and in characters, and the offset of that position.
type place struct{ line, column, offset int }

// offset returns where a token begins. The parser's own offsets are unreliable; its lines and columns are not.
func (d *Doc) offset(t *token.Token) int {
	if t == nil || t.Position == nil || t.Position.Line < 1 {
		return 0
	}
	if t.Position.Line > len(d.lines) {
		return len(d.text)
	}
	at := place{t.Position.Line, 1, d.lines[t.Position.Line-1]}
	if d.last.line == at.line && d.last.column <= t.Position.Column {
		at = d.last // start from the last result: otherwise many keys in one long line would take quadratic time
	}
	for ; at.column < t.Position.Column && at.offset < len(d.text) && d.text[at.offset] != '\n'; at.column++ {
		_, n := utf8.DecodeRuneInString(d.text[at.offset:])
		at.offset += n
	}
	d.last = at
	return at.offset
}
