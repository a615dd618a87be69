package mcp

import (
	"bytes"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

var isErrorKey = []byte(`"isError"`)

// IsError reports whether a result of tools/call has isError: true at its top level. It parses the result only if there is one
// anywhere, which most results do not have.
func IsError(result []byte) (yes bool) {
	if !hasTrue(result) {
		return false
	}
	err := jsonrpc.Each(result, func(key, value []byte) bool {
		if string(key) == "isError" {
			yes = string(value) == "true"
		}
		return true
	})
	return yes && err == nil
}

// hasTrue reports whether there is an isError: true anywhere.
func hasTrue(text []byte) bool {
	for {
		i := bytes.Index(text, isErrorKey)
		if i < 0 {
			return false
		}
		text = text[i+len(isErrorKey):]
		rest := bytes.TrimLeft(text, " \t\r\n")
		if len(rest) > 0 && rest[0] == ':' && bytes.HasPrefix(bytes.TrimLeft(rest[1:], " \t\r\n"), []byte("true")) {
			return true
		}
	}
}
