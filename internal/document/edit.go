package document

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// ErrEdit is the reason for an edit that was not made, because the text has a form that the edit does not support.
var ErrEdit = errors.New("the form of the file is not supported")

// bom is the byte order mark that some editors write.
const bom = "\ufeff"

// lineEnd is the line end of a text: that of its first line.
func lineEnd(text string) string {
	if i := strings.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// lineStart returns the offset of the start of the line at offset i.
func lineStart(text string, i int) int { return strings.LastIndexByte(text[:i], '\n') + 1 }

// indentAt returns the white space at the start of the line at offset i.
func indentAt(text string, i int) string {
	line := text[lineStart(text, i):i]
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

func blankText(s string) bool { return strings.Trim(s, " \t\r\n") == "" }

// cut is a span of a text to be replaced.
type cut struct {
	start, end int
	text       string
}

// apply replaces the spans, which are in order.
func apply(text string, cuts ...cut) string {
	var b strings.Builder
	at := 0
	for _, c := range cuts {
		b.WriteString(text[at:c.start])
		b.WriteString(c.text)
		at = c.end
	}
	b.WriteString(text[at:])
	return b.String()
}

// at returns the value at a path in a tree.
func at(tree any, path []string) (v any, ok bool) {
	v = tree
	for _, name := range path {
		m, isMap := v.(map[string]any)
		if v, ok = m[name]; !isMap || !ok {
			return nil, false
		}
	}
	return v, true
}

// without removes the value at a path, and the tables around it that have become empty.
func without(tree map[string]any, path []string) {
	if len(path) > 1 {
		sub, _ := tree[path[0]].(map[string]any)
		without(sub, path[1:])
		if len(sub) > 0 || sub == nil {
			return
		}
	}
	delete(tree, path[0])
}

// sameBut checks the result of an edit: except for the value at the path, the trees must be the same.
func sameBut(before, after map[string]any, path []string, want any) error {
	got, ok := at(after, path)
	if ok != (want != nil) || ok && !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%w: %s would not have the new value", ErrEdit, strings.Join(path, "."))
	}
	without(before, path)
	without(after, path)
	if !reflect.DeepEqual(before, after) {
		return fmt.Errorf("%w: something else would change", ErrEdit)
	}
	return nil
}
