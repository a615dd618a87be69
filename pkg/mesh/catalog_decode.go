package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// decodeSpec reads a Spec as json.Unmarshal does, several times as fast, and without copying the schemas: they
// are slices of data. A follower reads a hundred thousand tools when it starts, nearly all of whose bytes are
// schemas that nobody will look at.
func decodeSpec(data []byte) (*Spec, error) {
	s := new(Spec)
	if !json.Valid(data) {
		return nil, json.Unmarshal(data, s) // which says where
	}
	if data = bytes.TrimSpace(data); data[0] != '{' {
		return nil, errors.New("want an object")
	}
	rest := []byte{'{'} // everything but the tools
	var tools []byte
	eachMember(data, func(key, value []byte) error {
		if string(key) == `"tools"` {
			tools = value
			return nil
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, key...), ':'), value...)
		return nil
	})
	if err := json.Unmarshal(append(rest, '}'), s); err != nil {
		return nil, err
	}
	s.Tools = nil // a "Tools" of another spelling
	if tools == nil || string(tools) == "null" {
		return s, nil
	}
	if tools[0] != '[' {
		return nil, errors.New("tools: want an array")
	}
	s.Tools = []Tool{}
	err := eachElement(tools, func(element []byte) error {
		t, err := decodeTool(element)
		s.Tools = append(s.Tools, t)
		return err
	})
	return s, err
}

func decodeTool(data []byte) (Tool, error) {
	var t Tool
	if data[0] != '{' {
		return t, errors.New("tool: want an object")
	}
	err := eachMember(data, func(key, value []byte) error {
		var err error
		switch string(key) {
		case `"name"`:
			t.Name, err = decodeString(value, t.Name)
		case `"tool"`:
			t.Own, err = decodeString(value, t.Own)
		case `"description"`:
			t.Description, err = decodeString(value, t.Description)
		case `"input_schema"`:
			t.InputSchema = value
		default:
			var k string
			k, err = decodeString(key, "")
			t.Extra = append(t.Extra, Member{k, value})
		}
		if err != nil {
			return fmt.Errorf("tool: member %s: %w", key, err)
		}
		return nil
	})
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

// eachMember calls f for the members of an object, which must be valid JSON.
func eachMember(object []byte, f func(key, value []byte) error) error {
	for i := skipBlank(object, 1); object[i] != '}'; {
		end := endOfValue(object, i)
		key := object[i:end]
		i = skipBlank(object, skipBlank(object, end)+1) // over the colon
		end = endOfValue(object, i)
		if err := f(key, object[i:end:end]); err != nil {
			return err
		}
		if i = skipBlank(object, end); object[i] == ',' {
			i = skipBlank(object, i+1)
		}
	}
	return nil
}

// eachElement calls f for the elements of an array, which must be valid JSON.
func eachElement(array []byte, f func(element []byte) error) error {
	for i := skipBlank(array, 1); array[i] != ']'; {
		end := endOfValue(array, i)
		if err := f(array[i:end:end]); err != nil {
			return err
		}
		if i = skipBlank(array, end); array[i] == ',' {
			i = skipBlank(array, i+1)
		}
	}
	return nil
}

func skipBlank(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r' {
		i++
	}
	return i
}

// endOfValue is the offset behind the value that begins at i, in valid JSON.
func endOfValue(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = endOfString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		default:
			if depth > 0 {
				i++
				continue
			}
			for i < len(b) && !bytes.ContainsRune([]byte(" \n\t\r,]}:"), rune(b[i])) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// endOfString is the offset behind the string that begins at i, in valid JSON.
func endOfString(b []byte, i int) int {
	for i++; ; {
		quote := i + bytes.IndexByte(b[i:], '"')
		slash := bytes.IndexByte(b[i:quote], '\\')
		if slash < 0 {
			return quote + 1
		}
		i += slash + 2 // behind the escaped character; what follows a \u are plain characters
	}
}
