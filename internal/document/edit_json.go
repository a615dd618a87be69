package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// ParseJSON decodes a JSON text that may have comments and trailing commas. Unlike Doc.JSON, it does not limit the number and
// the length of keys, as the files of other programs have their own limits. Numbers are json.Number.
func ParseJSON(text string) (map[string]any, error) {
	dec := json.NewDecoder(strings.NewReader(withoutComments(strings.TrimPrefix(text, bom))))
	dec.UseNumber()
	var tree map[string]any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("there is text after the end of the object")
	}
	if tree == nil {
		return nil, errors.New("it is null; want an object")
	}
	return tree, nil
}

// SetJSON returns the JSON text with the member at the path set to a value. It changes only the member's span: comments, order,
// indentation and line ends of everything else stay. Objects on the way that are missing are added, and an empty text becomes
// an object. An error, ErrEdit among others, means that the text cannot be changed in that way.
func SetJSON(text string, path []string, value json.RawMessage) (string, error) {
	if blankText(strings.TrimPrefix(text, bom)) {
		text = "{\n}\n"
	}
	var want any
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	if err := dec.Decode(&want); err != nil {
		return "", err
	}
	return editJSON(text, path, want, func(e *jsonText) (string, error) {
		object, depth, err := e.find(path)
		if err != nil {
			return "", err
		}
		if depth == len(path) {
			return e.replace(object, path[depth-1], value)
		}
		for i := len(path) - 1; i > depth; i-- {
			value = json.RawMessage("{" + quoteJSON(path[i]) + ":" + string(value) + "}")
		}
		return e.insert(object, path[depth], value)
	})
}

// RemoveJSON returns the JSON text without the member at the path; see SetJSON. A member that does not exist is no error.
func RemoveJSON(text string, path []string) (string, error) {
	return editJSON(text, path, nil, func(e *jsonText) (string, error) {
		object, depth, err := e.find(path)
		if err != nil || depth < len(path) {
			return e.text, err
		}
		return e.remove(object, path[depth-1]), nil
	})
}

// editJSON calls edit and checks its result.
func editJSON(text string, path []string, want any, edit func(*jsonText) (string, error)) (string, error) {
	before, err := ParseJSON(text)
	if err != nil {
		return "", err
	}
	body := strings.TrimPrefix(text, bom)
	e := &jsonText{text: body, spaced: blanked(body, true), plain: withoutComments(body), eol: lineEnd(body)}
	out, err := edit(e)
	if err != nil {
		return "", err
	}
	out = text[:len(text)-len(body)] + out
	after, err := ParseJSON(out)
	if err != nil {
		return "", fmt.Errorf("%w: the result would be no JSON", ErrEdit)
	}
	return out, sameBut(before, after, path, want)
}

// jsonText is a valid JSON text being edited.
type jsonText struct {
	text   string
	spaced string // text with spaces in place of comments
	plain  string // spaced without the commas before a closing bracket
	eol    string
}

// jsonObject is an object in a jsonText.
type jsonObject struct {
	start, end int // the offsets of its brackets
	members    []jsonMember
}

type jsonMember struct {
	name            string
	key, start, end int // the offsets of the key, of the value, and of the value's end
}

// object reads the members of the object that begins at an offset.
func (e *jsonText) object(start int) (o jsonObject, err error) {
	o.start = start
	dec := json.NewDecoder(strings.NewReader(e.plain[start:]))
	if _, err := dec.Token(); err != nil {
		return o, err
	}
	next := func() int {
		i := start + int(dec.InputOffset())
		for i < len(e.plain) && strings.IndexByte(" \t\r\n,:", e.plain[i]) >= 0 {
			i++
		}
		return i
	}
	for dec.More() {
		m := jsonMember{key: next()}
		key, err := dec.Token()
		if err != nil {
			return o, err
		}
		m.name, _ = key.(string)
		m.start = next()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return o, err
		}
		m.end = start + int(dec.InputOffset())
		o.members = append(o.members, m)
	}
	o.end = next()
	return o, nil
}

// find returns the innermost object on the path that exists, and how many names of the path lead to it or, if all of the
// path exists, all of them.
func (e *jsonText) find(path []string) (o jsonObject, depth int, err error) {
	o, err = e.object(strings.IndexByte(e.plain, '{'))
	for err == nil {
		i, n := -1, 0
		for j, m := range o.members {
			if m.name == path[depth] {
				i, n = j, n+1
			}
		}
		switch {
		case n > 1:
			return o, 0, fmt.Errorf("%w: %s appears twice", ErrEdit, strings.Join(path[:depth+1], "."))
		case n == 0:
			return o, depth, nil
		}
		depth++
		if depth == len(path) {
			return o, depth, nil
		}
		if e.plain[o.members[i].start] != '{' {
			return o, 0, fmt.Errorf("%w: %s is not an object", ErrEdit, strings.Join(path[:depth], "."))
		}
		o, err = e.object(o.members[i].start)
	}
	return o, 0, err
}

// member returns the member with a name, which the object has.
func (o jsonObject) member(name string) (i int, m jsonMember) {
	for i, m = range o.members {
		if m.name == name {
			break
		}
	}
	return i, m
}

// lined reports whether an object has its members on lines of their own.
func (e *jsonText) lined(o jsonObject) bool {
	if len(o.members) == 0 {
		return strings.Contains(strings.TrimSpace(e.text), "\n")
	}
	return strings.Contains(e.text[o.start:o.members[0].key], "\n")
}

// unit is the indentation of one level.
func (e *jsonText) unit() string {
	if o, err := e.object(strings.IndexByte(e.plain, '{')); err == nil && len(o.members) > 0 {
		if indent := indentAt(e.text, o.members[0].key); indent != "" && e.lined(o) {
			return indent
		}
	}
	return "  "
}

// render formats a value that begins in a line with the indentation.
func (e *jsonText) render(value json.RawMessage, lined bool, indent string) string {
	var b bytes.Buffer
	if !lined {
		_ = json.Compact(&b, value) // it is valid
		return b.String()
	}
	_ = json.Indent(&b, value, indent, e.unit()) // it is valid
	return strings.ReplaceAll(b.String(), "\n", e.eol)
}

func (e *jsonText) replace(o jsonObject, name string, value json.RawMessage) (string, error) {
	_, m := o.member(name)
	return apply(e.text, cut{m.start, m.end, e.render(value, e.lined(o), indentAt(e.text, m.key))}), nil
}

// insert adds a member after the last one.
func (e *jsonText) insert(o jsonObject, name string, value json.RawMessage) (string, error) {
	lined, key := e.lined(o), quoteJSON(name)+": "
	if len(o.members) == 0 {
		outer := indentAt(e.text, o.start)
		indent := outer + e.unit()
		member := key + e.render(value, lined, indent)
		inner := e.text[o.start+1 : o.end]
		switch {
		case !lined:
			return apply(e.text, cut{o.start + 1, o.start + 1, member}), nil
		case blankText(inner):
			return apply(e.text, cut{o.start + 1, o.end, e.eol + indent + member + e.eol + outer}), nil
		case !strings.Contains(inner, "\n"):
			return "", fmt.Errorf("%w: there is a comment in an empty object", ErrEdit)
		}
		return apply(e.text, cut{o.start + 1, o.start + 1, e.eol + indent + member}), nil
	}
	last := o.members[len(o.members)-1]
	after, trailing := last.end, ""
	if gap := e.spaced[last.end:o.end]; strings.HasPrefix(strings.TrimLeft(gap, " \t\r\n"), ",") {
		after, trailing = last.end+strings.IndexByte(gap, ',')+1, ","
	}
	var cuts []cut
	if trailing == "" {
		cuts = append(cuts, cut{last.end, last.end, ","})
	}
	if !lined {
		return apply(e.text, append(cuts, cut{after, after, " " + key + e.render(value, false, "") + trailing})...), nil
	}
	// A comment after the last member stays in its line.
	if line, _, found := strings.Cut(e.spaced[after:], "\n"); found && blankText(line) {
		after += len(strings.TrimSuffix(line, "\r"))
	}
	indent := indentAt(e.text, o.members[0].key)
	return apply(e.text, append(cuts, cut{after, after, e.eol + indent + key + e.render(value, true, indent) + trailing})...), nil
}

// remove takes a member out, with its lines if it has them for itself.
func (e *jsonText) remove(o jsonObject, name string) string {
	i, m := o.member(name)
	var cuts []cut
	end := m.end
	gap := e.spaced[m.end:o.end]
	comma := strings.HasPrefix(strings.TrimLeft(gap, " \t\r\n"), ",")
	if comma {
		end += strings.IndexByte(gap, ',') + 1
	} else if i > 0 { // the comma before it goes
		c := o.members[i-1].end
		c += strings.IndexByte(e.spaced[c:m.key], ',')
		cuts = append(cuts, cut{c, c + 1, ""})
	}
	start := lineStart(e.text, m.key)
	line, _, found := strings.Cut(e.spaced[end:], "\n")
	switch {
	case found && blankText(line) && blankText(e.text[start:m.key]) && start > o.start:
		cuts = append(cuts, cut{start, end + len(line) + 1, ""})
	case comma && i+1 < len(o.members) && !strings.Contains(e.text[end:o.members[i+1].key], "\n"):
		cuts = append(cuts, cut{m.key, o.members[i+1].key, ""})
	case !comma && i > 0 && !strings.Contains(e.text[o.members[i-1].end:m.key], "\n"):
		cuts = []cut{{o.members[i-1].end, end, ""}}
	default:
		cuts = append(cuts, cut{m.key, end, ""})
	}
	return apply(e.text, cuts...)
}

// quoteJSON formats a string as JSON.
func quoteJSON(s string) string { return string(plainjson.AppendString(nil, s)) }

// MemberJSON returns the text of the value at a path, without comments.
func MemberJSON(text string, path []string) (value json.RawMessage, ok bool) {
	if _, err := ParseJSON(text); err != nil {
		return nil, false
	}
	text = withoutComments(strings.TrimPrefix(text, bom))
	e := &jsonText{text: text, spaced: text, plain: text}
	o, depth, err := e.find(path)
	if err != nil || depth < len(path) {
		return nil, false
	}
	_, m := o.member(path[depth-1])
	return json.RawMessage(text[m.start:m.end]), true
}
