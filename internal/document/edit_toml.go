package document

import (
	"errors"
	"fmt"
	"strings"
)

// AppendTOML returns the TOML text with a table at its end: the header for the path, and the lines of the body. A table that
// exists is replaced. Everything else stays as it is. An error, ErrEdit among others, means that the text cannot be changed in
// that way.
func AppendTOML(text string, path []string, body string) (string, error) {
	rest, err := RemoveTOML(text, path)
	if err != nil {
		return "", err
	}
	_, all, err := statements(rest)
	if err != nil {
		return "", err
	}
	for _, s := range all { // our decoder accepts a table below an inline table, and others refuse it
		if !s.header && strings.HasPrefix(joinAll(path)+".", s.path+".") {
			return "", fmt.Errorf("%w: %s is an inline table", ErrEdit, s.path)
		}
	}
	eol := lineEnd(text)
	block := "[" + joinAll(path) + "]\n" + body
	if !blankText(strings.TrimPrefix(rest, bom)) {
		if !strings.HasSuffix(rest, "\n") {
			rest += eol
		}
		if !strings.HasSuffix(rest, "\n\n") && !strings.HasSuffix(rest, "\n\r\n") {
			rest += eol
		}
	}
	rest += strings.ReplaceAll(block, "\n", eol)
	alone, _, err := statements(block)
	if err != nil {
		return "", err
	}
	want, _ := at(alone, path)
	return rest, checkTOML(text, rest, path, want)
}

// RemoveTOML returns the TOML text without the table at the path; see AppendTOML. Comments stay. A table that does not exist is
// no error.
func RemoveTOML(text string, path []string) (string, error) {
	_, all, err := statements(text)
	if err != nil {
		return "", err
	}
	key := joinAll(path)
	var cuts []cut
	for _, s := range all {
		if s.path != key && !strings.HasPrefix(s.path, key+".") {
			continue
		}
		if n := len(cuts); n > 0 && cuts[n-1].end == s.start {
			cuts[n-1].end = s.end
		} else {
			cuts = append(cuts, cut{s.start, s.end, ""})
		}
	}
	for i, c := range cuts { // one of the blank lines around a table goes with it
		line, _, found := strings.Cut(text[c.end:], "\n")
		if found && blankText(line) && blankText(text[lineStart(text, max(c.start-1, 0)):c.start]) {
			cuts[i].end += len(line) + 1
		}
	}
	out := apply(text, cuts...)
	return out, checkTOML(text, out, path, nil)
}

// ParseTOML decodes a TOML text, with the limits of Doc.TOML.
func ParseTOML(text string) (map[string]any, error) {
	tree, _, err := statements(text)
	return tree, err
}

// checkTOML checks the result of an edit.
func checkTOML(text, out string, path []string, want any) error {
	before, _, err := statements(text)
	if err != nil {
		return err
	}
	after, _, err := statements(out)
	if err != nil {
		return fmt.Errorf("%w: the result would be no TOML", ErrEdit)
	}
	return sameBut(before, after, path, want)
}

func joinAll(path []string) (key string) {
	for _, name := range path {
		key = Join(key, name)
	}
	return key
}

// statements decodes a TOML text and finds its statements.
func statements(text string) (map[string]any, []statement, error) {
	d, ok := Open("", []byte(text), Options{})
	var top *Table
	if ok {
		top, ok = d.TOML()
	}
	if !ok {
		f := d.Findings()[0]
		if f.Line > 0 {
			return nil, nil, fmt.Errorf("line %d: %s", f.Line, f.Message)
		}
		return nil, nil, errors.New(f.Message)
	}
	skipped := len(text) - len(d.text)
	for i := range d.statements {
		d.statements[i].start += skipped
		d.statements[i].end += skipped
	}
	if top.m == nil {
		top.m = map[string]any{}
	}
	return top.m, d.statements, nil
}

// TableTOML returns the lines of the table at a path without its header, as AppendTOML takes them, with the tables in it. ok is
// false if the text has the table in another form.
func TableTOML(text string, path []string) (body string, ok bool) {
	_, all, err := statements(text)
	if err != nil {
		return "", false
	}
	key := joinAll(path)
	for _, s := range all {
		switch {
		case s.path != key && !strings.HasPrefix(s.path, key+"."):
		case s.path == key && s.header && !ok:
			ok = true
		case !ok:
			return "", false
		default:
			body += strings.ReplaceAll(text[s.start:s.end], "\r\n", "\n")
		}
	}
	if body != "" && !strings.HasSuffix(body, "\n") {
		body += "\n"
	}
	return body, ok
}
