package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// The text of the file is changed in place, by the positions in its syntax tree. Writing the tree out again would
// be shorter, and would rewrite indentation, blank lines and quotes that are none of our business.

// setList makes the list at extensions.<key>, which is old, want.
func setList(path, text, key string, old, want []string) (string, error) {
	var err error
	for _, s := range old {
		if !slices.Contains(want, s) && err == nil {
			text, err = surgery(path, text, key, func(t *splice) error { return t.remove(s) })
		}
	}
	for _, s := range want {
		if !slices.Contains(old, s) && err == nil {
			text, err = surgery(path, text, key, func(t *splice) error { return t.add(s) })
		}
	}
	return text, err
}

// splice is one change of one list.
type splice struct {
	*file
	key  string
	ext  *mapping // extensions
	pair pair     // key and its list, if it is there
	eol  string
}

func surgery(path, text, key string, op func(*splice) error) (string, error) {
	bom := ""
	if strings.HasPrefix(text, "\xef\xbb\xbf") {
		bom = text[:3]
	}
	f, ok := open(path, text)
	if !ok {
		return "", errors.New("it cannot be read")
	}
	t := &splice{file: f, key: key, ext: f.top.sub("extensions"), eol: "\n"}
	t.pair, _ = t.ext.find(key)
	if strings.Contains(f.text, "\r\n") {
		t.eol = "\r\n"
	}
	err := op(t)
	return bom + t.text, err
}

// insert puts s at an offset.
func (t *splice) insert(at int, s string) error {
	t.text = t.text[:at] + s + t.text[at:]
	return nil
}

// cut removes the text from one offset to another.
func (t *splice) cut(from, to int) { t.text = t.text[:from] + t.text[to:] }

// add puts an item at the end of the list.
func (t *splice) add(item string) error {
	switch v := t.pair.value.(type) {
	case nil:
		if t.pair.colon == nil {
			return t.addKey(t.key + ": [" + scalar(item) + "]")
		}
		return t.insert(t.offset(t.pair.colon)+1, " ["+scalar(item)+"]") // an explicit null is then a fault of the syntax, and seen
	case *ast.SequenceNode:
		if v.IsFlowStyle && len(v.Values) == 0 {
			return t.insert(t.offset(v.Start)+1, scalar(item))
		}
		last := v.Values[len(v.Values)-1]
		if v.IsFlowStyle {
			_, end, err := t.extent(last)
			if err != nil {
				return err
			}
			return t.insert(end, ", "+scalar(item))
		}
		indent := strings.Repeat(" ", v.Start.Position.Column-1)
		return t.insertLine(lastLine(last), indent+"- "+scalar(item))
	}
	return errors.New("the list is none")
}

// addKey puts a line with a new key below extensions.
func (t *splice) addKey(line string) error {
	top := t.top.pairs
	if len(top) == 0 {
		if body := strings.TrimRight(t.text, "\r\n"); body == "" {
			t.text = ""
		}
		return t.insertLine(len(t.lines), "extensions:"+t.eol+"  "+line)
	}
	m := t.ext.node
	switch {
	case m == nil:
		return t.insertLine(top[0].key.Position.Line, "  "+line)
	case !m.IsFlowStyle:
		indent := strings.Repeat(" ", m.Values[0].Key.GetToken().Position.Column-1)
		return t.insertLine(lastLine(m), indent+line)
	case len(m.Values) == 0:
		return t.insert(t.offset(m.Start)+1, line)
	}
	_, end, err := t.extent(m.Values[len(m.Values)-1].Value)
	if err != nil {
		return err
	}
	return t.insert(end, ", "+line)
}

// insertLine puts a line after the line with this number.
func (t *splice) insertLine(after int, line string) error {
	if after < len(t.lines) {
		return t.insert(t.lines[after], line+t.eol)
	}
	if t.text != "" && !strings.HasSuffix(t.text, "\n") {
		t.text += t.eol
	}
	t.text += line + t.eol
	return nil
}

// remove takes every occurrence of an item from the list.
func (t *splice) remove(item string) error {
	seq, ok := t.pair.value.(*ast.SequenceNode)
	if !ok {
		return errors.New("the list is none")
	}
	left := len(seq.Values)
	// From the end, so that the positions before it stay true.
	for i := len(seq.Values) - 1; i >= 0; i-- {
		if s, _ := str(seq.Values[i]); s != item {
			continue
		}
		left--
		if !seq.IsFlowStyle {
			line := seq.Values[i].GetToken().Position.Line
			from, to := t.lines[line-1], len(t.text)
			if line < len(t.lines) {
				to = t.lines[line]
			}
			if lastLine(seq.Values[i]) != line || !strings.HasPrefix(strings.TrimLeft(t.text[from:to], " "), "- ") {
				return fmt.Errorf("the item %s is not on one line", show(item))
			}
			t.cut(from, to)
		} else if err := t.removeFlow(seq.Values[i]); err != nil {
			return err
		}
	}
	if left == 0 && !seq.IsFlowStyle {
		return t.insert(t.offset(t.pair.colon)+1, " []")
	}
	return nil
}

// removeFlow takes a node out of [a, b], with the comma after it or, for the last one, the one before it.
func (t *splice) removeFlow(n ast.Node) error {
	from, to, err := t.extent(n)
	if err != nil {
		return err
	}
	if rest := strings.TrimLeft(t.text[to:], " "); strings.HasPrefix(rest, ",") {
		to = len(t.text) - len(rest) + 1
		if strings.HasPrefix(t.text[to:], " ") && !strings.HasPrefix(strings.TrimLeft(t.text[to:], " "), "#") {
			to++
		}
	} else if before := strings.TrimRight(t.text[:from], " \r\n"); strings.HasSuffix(before, ",") {
		from = len(before) - 1
	}
	t.cut(from, to)
	// A line that held nothing else goes, too.
	start := strings.LastIndexByte(t.text[:from], '\n') + 1
	if end := strings.IndexByte(t.text[from:], '\n'); start > 0 && end >= 0 && strings.TrimSpace(t.text[start:from+end]) == "" {
		t.cut(start, from+end+1)
	}
	return nil
}

// extent is where a scalar or a flow collection begins and ends.
func (t *splice) extent(n ast.Node) (from, to int, err error) {
	start, end := n.GetToken(), (*token.Token)(nil)
	switch n := n.(type) {
	case *ast.SequenceNode:
		end = n.End
	case *ast.MappingNode:
		end = n.End
	case *ast.StringNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
		from = t.offset(start)
		raw := strings.TrimSpace(start.Origin)
		if raw == "" || !strings.HasPrefix(t.text[from:], raw) {
			return 0, 0, errors.New("an item has no clear end")
		}
		return from, from + len(raw), nil
	}
	if end == nil {
		return 0, 0, errors.New("an item has no clear end")
	}
	return t.offset(start), t.offset(end) + 1, nil
}

// lastLine is the number of the last line that a node reaches.
func lastLine(n ast.Node) int {
	last := 0
	ast.Walk(visit(func(n ast.Node) {
		t := n.GetToken()
		switch n := n.(type) {
		case *ast.SequenceNode:
			if n.End != nil {
				t = n.End
			}
		case *ast.MappingNode:
			if n.End != nil {
				t = n.End
			}
		}
		if t == nil || t.Position == nil {
			return
		}
		more := 0
		if _, scalar := n.(ast.ScalarNode); scalar {
			more = strings.Count(strings.TrimSpace(t.Origin), "\n")
		}
		last = max(last, t.Position.Line+more)
	}), n)
	return last
}

type visit func(ast.Node)

func (v visit) Visit(n ast.Node) ast.Visitor {
	v(n)
	return v
}

// plain is what YAML, of whatever version, reads as the string it looks like.
var plain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

// scalar writes a string as YAML.
func scalar(s string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if plain.MatchString(s) && !slices.Contains(words, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// flow writes a list as YAML.
func flow(list []string) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, scalar(s))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
