package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// decodeSpec reads a Spec as json.Unmarshal does, several times as fast, and without copying the schemas: they are slices
// of data. A follower reads a hundred thousand tools when it starts, and most of their bytes are schemas.
func decodeSpec(data []byte) (*Spec, error) {
	s := new(Spec)
	rest := []byte{'{'} // everything but the tools
	var tools []byte
	err := jsonrpc.Each(data, func(key, value []byte) bool { // it checks the grammar of all of data
		if string(key) == "tools" {
			tools = value
			return true
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(append(rest, '"'), key...), `":`...), value...)
		return true
	})
	if err == nil {
		err = json.Unmarshal(append(rest, '}'), s)
	}
	if err != nil {
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
	_ = jsonrpc.Elements(tools, func(element []byte) bool { // its grammar was checked above
		var t Tool
		t, err = decodeTool(element)
		s.Tools = append(s.Tools, t)
		return err == nil
	})
	return s, err
}

func decodeTool(data []byte) (Tool, error) {
	var t Tool
	if data[0] != '{' {
		return t, errors.New("tool: want an object")
	}
	var err error
	_ = jsonrpc.Each(data, func(key, value []byte) bool { // its grammar was checked
		switch string(key) {
		case "name":
			t.Name, err = decodeString(value, t.Name)
		case "tool":
			t.Own, err = decodeString(value, t.Own)
		case "description":
			t.Description, err = decodeString(value, t.Description)
		case "input_schema":
			t.InputSchema = value
		default:
			var k string
			k, err = decodeString(append(append([]byte{'"'}, key...), '"'), "")
			t.Extra = append(t.Extra, wire.Member{Key: k, Value: value})
		}
		if err != nil {
			err = fmt.Errorf("tool: member %s: %w", key, err)
		}
		return err == nil
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
