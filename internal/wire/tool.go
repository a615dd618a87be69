package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/extmesh/extmesh/internal/jsonrpc"
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
func (t Tool) MarshalJSON() ([]byte, error) { return t.appendJSON(nil), nil }

func (t *Tool) appendJSON(b []byte) []byte {
	b = append(append(b, `{"name":`...), Quote(t.Name)...)
	b = AppendMember(b, "tool", Quote(t.Own))
	b = AppendMember(b, "description", Quote(t.Description))
	schema := t.InputSchema
	if len(schema) == 0 {
		schema = EmptySchema
	}
	b = AppendMember(b, "input_schema", schema)
	for _, m := range t.Extra {
		b = AppendMember(b, m.Key, m.Value)
	}
	return append(b, '}')
}

// toolRoom is about the size of a tool without its texts.
const toolRoom = 100

// ToolSize is about the size of a tool in memory and in a Spec.
func ToolSize(t Tool) int {
	return toolRoom + len(t.Own) + len(t.Description) + len(t.InputSchema) + ExtraSize(t)
}

// ExtraSize is the size of the tool's other members.
func ExtraSize(t Tool) int {
	sum := 0
	for _, m := range t.Extra {
		sum += len(m.Key) + len(m.Value) + 4
	}
	return sum
}

// AppendDescriptor appends the tool as its extension lists it: under its own name, {name, description,
// input_schema, …}.
func (t *Tool) AppendDescriptor(dst []byte) []byte {
	dst = append(dst, `{"name":`...)
	dst = append(dst, Quote(t.Own)...)
	if t.Description != "" {
		dst = AppendMember(dst, "description", Quote(t.Description))
	}
	dst = AppendMember(dst, "input_schema", t.InputSchema)
	for _, m := range t.Extra {
		dst = AppendMember(dst, m.Key, m.Value)
	}
	return append(dst, '}')
}

// Repeatable reports whether the annotations of the tool allow it to run twice.
func (t *Tool) Repeatable() bool {
	var hints struct {
		ReadOnly   bool `json:"readOnlyHint"`
		Idempotent bool `json:"idempotentHint"`
	}
	err := json.Unmarshal(t.Member("annotations"), &hints)
	return err == nil && (hints.ReadOnly || hints.Idempotent)
}

// Member returns one of the descriptor's other members, such as annotations, or nil if there is none with this key. Of
// several with the key, the last counts.
func (t *Tool) Member(key string) json.RawMessage {
	for _, m := range slices.Backward(t.Extra) {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Tool) UnmarshalJSON(data []byte) (err error) {
	*t, err = DecodeTool(bytes.Clone(data))
	return err
}

// DecodeTool reads what MarshalJSON wrote. The schema and the other members share the memory of data.
func DecodeTool(data []byte) (t Tool, err error) {
	malformed := jsonrpc.Each(data, func(key, value []byte) bool {
		name := key
		if bytes.IndexByte(key, '\\') >= 0 {
			name = []byte(keyOf(key))
		}
		switch string(name) {
		case "name":
			t.Name, err = decodeString(value, t.Name)
		case "tool":
			t.Own, err = decodeString(value, t.Own)
		case "description":
			t.Description, err = decodeString(value, t.Description)
		case "input_schema":
			t.InputSchema = value
		default:
			t.Extra = append(t.Extra, Member{keyOf(key), value})
		}
		if err != nil {
			err = fmt.Errorf("tool: member %q: %w", key, err)
		}
		return err == nil
	})
	if malformed != nil {
		err = fmt.Errorf("tool: %w", malformed)
	}
	return t, err
}

// decodeString reads a JSON string; null leaves what there was.
func decodeString(value []byte, was string) (string, error) {
	if value[0] == '"' && bytes.IndexByte(value, '\\') < 0 && isASCII(value) {
		return string(value[1 : len(value)-1]), nil
	}
	err := json.Unmarshal(value, &was)
	return was, err
}

// isASCII: other strings may hold bytes that are not UTF-8, which json.Unmarshal replaces.
func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// keyOf reads a key without its quotes, as jsonrpc.Each passes it.
func keyOf(key []byte) string {
	s, _ := decodeString(slices.Concat([]byte{'"'}, key, []byte{'"'}), "") // Each has checked it
	return s
}

// Members splits a JSON object into its members, in order, values untouched.
func Members(object []byte) (out []Member, err error) {
	err = jsonrpc.Each(object, func(key, value []byte) bool {
		out = append(out, Member{keyOf(key), bytes.Clone(value)})
		return true
	})
	return out, err
}

// AppendMember appends a comma and a member of an object.
func AppendMember(dst []byte, key string, value []byte) []byte {
	dst = plainjson.AppendString(append(dst, ','), key)
	return append(append(dst, ':'), value...)
}

// Quote is s as a JSON string.
func Quote(s string) []byte { return plainjson.AppendString(nil, s) }
