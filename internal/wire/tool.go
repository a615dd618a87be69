package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// Tool is one tool in a Spec: its registered name, its own name, and every other member of the child's
// descriptor verbatim (number literals, unknown members and all).
type Tool struct {
	Name        string          // registered: ext_<id>_<tool>, or its suffixed form
	Own         string          // the extension's own name; "tool" in JSON
	Description string          // prefixed "[ext:<id>] " once
	InputSchema json.RawMessage // as the child gave it; {"type":"object"} when it gave none
	Extra       []Member        // the descriptor's other members, in the child's order
}

// Member is one member of a JSON object, kept as it came.
type Member struct {
	Key   string
	Value json.RawMessage
}

// MarshalJSON writes name, tool, description and input_schema, then Extra in order.
func (t Tool) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	put := func(key string, v []byte) {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(Quote(key))
		b.WriteByte(':')
		b.Write(v)
	}
	put("name", Quote(t.Name))
	put("tool", Quote(t.Own))
	put("description", Quote(t.Description))
	schema := t.InputSchema
	if len(schema) == 0 {
		schema = json.RawMessage(`{"type":"object"}`)
	}
	put("input_schema", schema)
	for _, m := range t.Extra {
		put(m.Key, m.Value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// AppendDescriptor appends the tool as its extension lists it: under its own name, {name, description,
// input_schema, …}.
func (t *Tool) AppendDescriptor(dst []byte) []byte {
	dst = append(dst, `{"name":`...)
	dst = append(dst, Quote(t.Own)...)
	put := func(key string, value []byte) {
		dst = append(dst, ',')
		dst = append(dst, Quote(key)...)
		dst = append(dst, ':')
		dst = append(dst, value...)
	}
	if t.Description != "" {
		put("description", Quote(t.Description))
	}
	put("input_schema", t.InputSchema)
	for _, m := range t.Extra {
		put(m.Key, m.Value)
	}
	return append(dst, '}')
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Tool) UnmarshalJSON(data []byte) error {
	members, err := Members(data)
	if err != nil {
		return fmt.Errorf("tool: %w", err)
	}
	*t = Tool{}
	for _, m := range members {
		var err error
		switch m.Key {
		case "name":
			err = json.Unmarshal(m.Value, &t.Name)
		case "tool":
			err = json.Unmarshal(m.Value, &t.Own)
		case "description":
			err = json.Unmarshal(m.Value, &t.Description)
		case "input_schema":
			t.InputSchema = m.Value
		default:
			t.Extra = append(t.Extra, m)
		}
		if err != nil {
			return fmt.Errorf("tool: member %q: %w", m.Key, err)
		}
	}
	return nil
}

// Members splits a JSON object into its members, in order, values untouched.
func Members(object []byte) ([]Member, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("want an object, have %v", open)
	}
	var out []Member
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		out = append(out, Member{key.(string), v})
	}
	_, err = dec.Token()
	return out, err
}

// quote is s as a JSON string.
func Quote(s string) []byte { return plainjson.AppendString(nil, s) }
