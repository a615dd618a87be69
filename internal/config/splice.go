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

// The text of the file is changed in place, at the positions from its syntax tree. Writing the tree would be shorter,
// but would also change indentation, blank lines and quotes elsewhere in the file.

// setList changes the list at extensions.<key> from old to want.
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
	pair pair     // key and its list, if present
	eol  string
	json bool // the file is written as JSON, and stays JSON
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
	t.json = len(f.top.pairs) > 0 && strings.HasPrefix(f.text[f.offset(f.top.pairs[0].key):], `"`)
	err := op(t)
	return bom + t.text, err
}

// insert inserts s at an offset.
func (t *splice) insert(at int, s string) error {
	t.text, t.last = t.text[:at]+s+t.text[at:], place{}
	return nil
}

// cut removes the text from one offset to another.
func (t *splice) cut(from, to int) { t.text, t.last = t.text[:from]+t.text[to:], place{} }

// add appends an item to the list.
func (t *splice) add(item string) error {
	switch v := t.pair.value.(type) {
	case nil:
		if t.pair.colon == nil {
			return t.addKey(t.scalar(t.key) + ": [" + t.scalar(item) + "]")
		}
		t.dropNull(t.pair)
		return t.insert(t.offset(t.pair.colon)+1, " ["+t.scalar(item)+"]")
	case *ast.SequenceNode:
		if v.IsFlowStyle {
			return t.addFlow(v, item)
		}
		last := v.Values[len(v.Values)-1]
		indent := strings.Repeat(" ", v.Start.Position.Column-1)
		return t.insertLine(lastLine(last), indent+"- "+t.scalar(item))
	}
	return errors.New("its value is not a list")
}

// addFlow appends an item to [a, b]; on a separate line if the last item is.
func (t *splice) addFlow(v *ast.SequenceNode, item string) error {
	if len(v.Values) == 0 {
		at, end := t.offset(v.Start)+1, t.offset(v.End)
		if strings.TrimSpace(t.text[at:end]) == "" {
			t.cut(at, end)
			return t.insert(at, t.scalar(item))
		}
		return t.insert(at, t.scalar(item)+" ") // a comment follows
	}
	from, to, err := t.extent(v.Values[len(v.Values)-1])
	if err != nil {
		return err
	}
	line := strings.LastIndexByte(t.text[:from], '\n') + 1
	end := strings.IndexByte(t.text[to:], '\n')
	indent := t.text[line:from]
	if after, _, _ := strings.Cut(t.text[to:], "\n"); end < 0 || strings.Trim(indent, " ") != "" || strings.Contains(after, "]") {
		return t.insert(to, ", "+t.scalar(item))
	}
	comma := ""
	if strings.HasPrefix(t.text[to:], ",") {
		comma = ","
	}
	_ = t.insert(to+end+1, indent+t.scalar(item)+comma+t.eol)
	if comma == "" {
		return t.insert(to, ",")
	}
	return nil
}

// dropNull removes an explicit null, with the white space before it.
func (t *splice) dropNull(p pair) {
	if p.null == nil {
		return
	}
	from := t.offset(p.colon) + 1
	to := t.offset(p.null)
	word := strings.TrimSpace(p.null.Origin)
	if word != "" && to >= from && strings.HasPrefix(t.text[to:], word) && strings.TrimSpace(t.text[from:to]) == "" {
		t.cut(from, to+len(word))
	}
}

// addKey adds a new key with its value below extensions.
func (t *splice) addKey(entry string) error {
	top := t.top.pairs
	if len(top) == 0 {
		if strings.TrimRight(t.text, "\r\n") == "" {
			t.text, t.lines = "", []int{0}
		}
		return t.insertLine(len(t.lines), "extensions:"+t.eol+"  "+entry)
	}
	m := t.ext.node
	switch {
	case m == nil:
		t.dropNull(top[0])
		if t.top.node.IsFlowStyle {
			return t.insert(t.offset(top[0].colon)+1, " {"+entry+"}")
		}
		return t.insert(t.offset(top[0].colon)+1+t.rest(top[0].colon), t.eol+"  "+entry)
	case !m.IsFlowStyle:
		indent := strings.Repeat(" ", m.Values[0].Key.GetToken().Position.Column-1)
		return t.insertLine(lastLine(m), indent+entry)
	case len(m.Values) == 0:
		return t.insert(t.offset(m.Start)+1, entry)
	}
	_, end, err := t.extent(m.Values[len(m.Values)-1].Value)
	if err != nil {
		return err
	}
	return t.insert(end, ", "+entry)
}

// rest returns the length of the text after a colon in its line, without the line end.
func (t *splice) rest(colon *token.Token) int {
	line, _, _ := strings.Cut(t.text[t.offset(colon)+1:], "\n")
	return len(strings.TrimSuffix(line, "\r"))
}

// insertLine inserts a line after the line with this number.
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

// remove removes every occurrence of an item from the list.
func (t *splice) remove(item string) error {
	seq, ok := t.pair.value.(*ast.SequenceNode)
	if !ok {
		return errors.New("its value is not a list")
	}
	left := len(seq.Values)
	// From the end, so that the positions before it stay valid.
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

// removeFlow removes a node from [a, b], with the comma after it or, for the last one, the one before it.
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
	// A line that contained nothing else except a comment is removed too.
	start := strings.LastIndexByte(t.text[:from], '\n') + 1
	if end := strings.IndexByte(t.text[from:], '\n'); start > 0 && end >= 0 {
		if left := strings.TrimSpace(t.text[start : from+end]); left == "" || left[0] == '#' {
			t.cut(start, from+end+1)
		}
	}
	return nil
}

// extent returns where a scalar or a flow collection begins and ends.
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
			return 0, 0, errors.New("the end of an item cannot be determined")
		}
		return from, from + len(raw), nil
	}
	if end == nil {
		return 0, 0, errors.New("the end of an item cannot be determined")
	}
	return t.offset(start), t.offset(end) + 1, nil
}

// lastLine returns the number of the last line of a node.
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

// plain matches what every version of YAML reads as a string without quotes.
var plain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

// scalar formats a string in the style of the file.
func (t *splice) scalar(s string) string {
	if t.json {
		return strconv.Quote(s)
	}
	return scalar(s)
}

// scalar formats a string as YAML.
func scalar(s string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if plain.MatchString(s) && !slices.Contains(words, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// flow formats a list as YAML.
func flow(list []string) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, scalar(s))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
