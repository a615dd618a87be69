package manifest

import (
	"encoding/json"
	"errors"
	"strings"
)

// decodeJSON decodes a JSON file, which must be an object.
func (f *file) decodeJSON() (map[string]any, bool) {
	f.tables = "an object"
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(f.text), &whole); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			f.faultAt(int(syntax.Offset)-1, "syntax: %v", err)
		} else {
			f.fault("", "%v", err)
		}
		return nil, false
	}
	// The text is read again for the positions, which Unmarshal has only in errors.
	d := jsonReader{file: f, dec: json.NewDecoder(strings.NewReader(f.text))}
	d.dec.UseNumber() // no key is a number, so a number beyond float64 is not a fault
	v, ok := d.value("", 0)
	if !ok {
		return nil, false
	}
	tree, ok := v.(map[string]any)
	if !ok {
		f.faultAt(0, "is %s; want an object", kindOf(v))
	}
	return tree, ok
}

// jsonReader decodes JSON that is known to be valid, and records positions.
type jsonReader struct {
	*file
	dec *json.Decoder
}

func (d jsonReader) value(path string, depth int) (any, bool) {
	if depth > maxNesting {
		d.faultAt(int(d.dec.InputOffset()), "%v", errDeep)
		return nil, false
	}
	tok, err := d.dec.Token()
	if err != nil {
		d.fault("", "%v", err)
		return nil, false
	}
	switch tok {
	case json.Delim('{'):
		m := map[string]any{}
		for d.dec.More() {
			at := d.next()
			key, _ := d.dec.Token()
			name, _ := key.(string)
			sub := join(path, name)
			if over := d.setPos(sub, at); over != nil {
				d.faultAt(at, "%v", over)
				return nil, false
			}
			if _, twice := m[name]; twice {
				d.warn(sub, "appears twice; the last one is used")
			}
			v, ok := d.value(sub, depth+1)
			if !ok {
				return nil, false
			}
			m[name] = v
		}
		_, err = d.dec.Token()
		return m, err == nil
	case json.Delim('['):
		list := []any{}
		for d.dec.More() {
			sub := path
			if len(list) < maxElements && d.setPos(element(path, len(list)), d.next()) == nil {
				sub = element(path, len(list))
			}
			v, ok := d.value(sub, depth+1)
			if !ok {
				return nil, false
			}
			list = append(list, v)
		}
		_, err = d.dec.Token()
		return list, err == nil
	}
	return tok, true
}

// next returns the offset of the next token.
func (d jsonReader) next() int {
	i := int(d.dec.InputOffset())
	for i < len(d.text) && strings.IndexByte(" \t\r\n,:", d.text[i]) >= 0 {
		i++
	}
	return i
}
