package document

import (
	"encoding/json"
	"errors"
	"strings"
)

// JSON decodes a JSON file, which must be an object. Comments and commas before a closing bracket are allowed.
func (d *Doc) JSON() (*Table, bool) {
	d.words = words{"a number", "a number", "an array", "an object", "a string in quotes",
		`an array of strings, such as ["a", "b"]`, "an object"}
	d.text = withoutComments(d.text)
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(d.text), &whole); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			d.FaultAt(max(int(syntax.Offset)-1, 0), "syntax: %v", err)
		} else {
			d.Fault("", "%v", err)
		}
		return nil, false
	}
	// The text is read again for the positions, which Unmarshal has only in errors.
	r := jsonReader{Doc: d, dec: json.NewDecoder(strings.NewReader(d.text))}
	r.dec.UseNumber() // so that a number in the place of a string keeps its text
	v, err := r.value("", 0)
	if err != nil {
		d.FaultAt(int(r.dec.InputOffset()), "%v", err)
		return nil, false
	}
	if v == nil {
		v = unsupported("null")
	}
	return d.root(v, 0)
}

// jsonReader decodes JSON that is known to be valid, and records positions.
type jsonReader struct {
	*Doc
	dec *json.Decoder
}

func (r jsonReader) value(path string, depth int) (any, error) {
	if depth > maxNesting {
		return nil, ErrDeep
	}
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		m := map[string]any{}
		for r.dec.More() {
			if err := r.member(path, m, depth); err != nil {
				return nil, err
			}
		}
		_, err = r.dec.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for r.dec.More() {
			sub, at := path, r.next()
			if element := Element(path, len(list)); len(list) < maxElements && r.setPos(element, at, at) == nil {
				sub = element
			}
			v, err := r.value(sub, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = r.dec.Token()
		return list, err
	}
	return tok, nil
}

// member reads one member of the object at path.
func (r jsonReader) member(path string, m map[string]any, depth int) error {
	at := r.next()
	key, err := r.dec.Token()
	if err != nil {
		return err
	}
	name, _ := key.(string)
	path = Join(path, name)
	if err := r.setPos(path, at, r.next()); err != nil {
		return err
	}
	if _, twice := m[name]; twice {
		r.Warn(path, "appears twice; the last one is used")
	}
	m[name], err = r.value(path, depth+1)
	return err
}

// next returns the offset of the next token.
func (r jsonReader) next() int {
	i := int(r.dec.InputOffset())
	for i < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[i]) >= 0 {
		i++
	}
	return i
}

// withoutComments replaces the comments of a JSON text by spaces, and the commas before a closing bracket. Line breaks
// and all positions stay.
func withoutComments(text string) string { return blanked(text, false) }

// blanked is withoutComments, but can keep the commas.
func blanked(text string, commas bool) string {
	b := []byte(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if b[i] != '\n' && b[i] != '\r' {
				b[i] = ' '
			}
		}
	}
	comma := -1 // the offset of a comma with only white space and comments after it
	for i := 0; i < len(b); i++ {
		rest := text[i:]
		switch {
		case b[i] == '"':
			comma = -1
			for i++; i < len(b) && b[i] != '"' && b[i] != '\n'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(rest, "//"):
			comment, _, _ := strings.Cut(rest, "\n")
			blank(i, i+len(comment))
			i += len(comment) - 1
		case strings.HasPrefix(rest, "/*"):
			comment, _, closed := strings.Cut(rest[2:], "*/")
			if !closed {
				return string(b) // the decoder reports it
			}
			end := i + len("/*") + len(comment) + len("*/")
			blank(i, end)
			i = end - 1
		case b[i] == ',':
			comma = i
		case (b[i] == '}' || b[i] == ']') && comma >= 0 && !commas:
			b[comma] = ' '
			comma = -1
		case strings.IndexByte(" \t\r\n", b[i]) < 0:
			comma = -1
		}
	}
	return string(b)
}
