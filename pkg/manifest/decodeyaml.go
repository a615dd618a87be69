package manifest

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// decodeYAML decodes a front matter; its line numbers match the file. It uses the parser's syntax tree instead of
// decoding, because the tree has the positions and does not expand aliases, whose expansion could grow without bound.
func (f *file) decodeYAML(text string) (tree map[string]any, ok bool) {
	f.tables = "keys and values below it"
	// The parser panics, or leaves gaps in its tree, on some malformed texts; a skill must not end the program that
	// reads it.
	defer func() {
		if r := recover(); r != nil {
			f.fault("", "the YAML parser cannot read this front matter: %s", clip(fmt.Sprint(r), maxShown))
			tree, ok = nil, false
		}
	}()
	doc, err := parser.ParseBytes([]byte(text), 0)
	var syntax yaml.Error
	switch {
	case errors.As(err, &syntax) && syntax.GetToken() != nil:
		f.faultAt(f.offset(syntax.GetToken()), "syntax: %s", clip(syntax.GetMessage(), 4*maxShown))
		return nil, false
	case err != nil:
		f.fault("", "syntax: %s", clip(err.Error(), 4*maxShown))
		return nil, false
	}
	if len(doc.Docs) > 1 {
		f.faultAt(f.offset(doc.Docs[1].Start), "a second YAML document; want one")
		return nil, false
	}
	if len(doc.Docs) == 0 || doc.Docs[0].Body == nil {
		return nil, true
	}
	body := doc.Docs[0].Body
	v := f.yaml("", body, 0)
	if tree, ok = v.(map[string]any); !ok && v != nil {
		f.faultAt(f.offset(body.GetToken()), "the front matter is %s; want keys and values, such as name: greet", kindOf(v))
	}
	return tree, f.faults == 0
}

// yaml converts a syntax tree and records the positions.
func (f *file) yaml(path string, n ast.Node, depth int) any {
	if depth > maxNesting {
		f.faultAt(f.offset(n.GetToken()), "%v", errDeep)
		return nil
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		m := map[string]any{}
		for _, v := range n.Values {
			f.yamlPair(path, v, m, depth)
		}
		return m
	case *ast.MappingValueNode:
		m := map[string]any{}
		f.yamlPair(path, n, m, depth)
		return m
	case *ast.SequenceNode:
		list := []any{}
		for i, v := range n.Values {
			sub := element(path, i)
			f.pos[sub] = f.offset(v.GetToken())
			list = append(list, f.yaml(sub, v, depth+1))
		}
		return list
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
			if v < 1<<63 {
				return int64(v)
			}
		}
		return float64(0) // beyond 64 bits: reported like a number that is not whole
	case *ast.FloatNode:
		return n.Value
	case *ast.NullNode, nil:
		return nil
	}
	f.faultAt(f.offset(n.GetToken()), "%s are not supported in a front matter; write the value out", what(n))
	return nil
}

func (f *file) yamlPair(path string, v *ast.MappingValueNode, m map[string]any, depth int) {
	key, ok := v.Key.(*ast.StringNode)
	if !ok {
		f.faultAt(f.offset(v.Key.GetToken()), "this key is not a plain string; want one such as name")
		return
	}
	sub := join(path, key.Value)
	f.pos[sub] = f.offset(key.GetToken())
	m[key.Value] = f.yaml(sub, v.Value, depth+1)
}

func what(n ast.Node) string {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "anchors and aliases"
	case *ast.TagNode, *ast.DirectiveNode:
		return "tags and directives"
	}
	return "values of this kind"
}

// offset returns the offset of a token, whose column counts characters.
func (f *file) offset(t *token.Token) int {
	if t == nil || t.Position == nil || t.Position.Line < 1 || t.Position.Line > len(f.lines) {
		return 0
	}
	off := f.lines[t.Position.Line-1]
	for i := 1; i < t.Position.Column && off < len(f.text) && f.text[off] != '\n'; i++ {
		_, n := utf8.DecodeRuneInString(f.text[off:])
		off += n
	}
	return off
}
