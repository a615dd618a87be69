package wire

import (
	"encoding/json"
	"errors"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// AppendCallParams appends the params of tools/call for a tool with these arguments, of which none are {}.
func AppendCallParams(dst []byte, tool string, args []byte) []byte {
	if len(args) == 0 {
		args = []byte("{}")
	}
	dst = append(dst, `{"name":`...)
	dst = append(dst, Quote(tool)...)
	dst = append(dst, `,"arguments":`...)
	return append(append(dst, args...), '}')
}

// CallParams takes the params of tools/call apart without touching the arguments, which are {} if absent.
func CallParams(params json.RawMessage) (name string, args json.RawMessage, err error) {
	at, ok := jsonrpc.Member(params, "name")
	if !ok || json.Unmarshal(at.In(params), &name) != nil || name == "" {
		return "", nil, errors.New(`params of tools/call need a "name"`)
	}
	if at, ok := jsonrpc.Member(params, "arguments"); ok {
		return name, at.In(params), nil
	}
	return name, json.RawMessage("{}"), nil
}
