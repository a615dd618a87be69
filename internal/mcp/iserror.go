package mcp

import (
	"bytes"
	"encoding/json"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// maxLook is how much of a large result is examined at its beginning and at its end.
const maxLook = 4 << 10

var isErrorKey = []byte(`"isError"`)

// IsError reports whether a result of tools/call has isError: true at its top level. Of a result of more than 8 KiB it looks
// only at the first and the last 4 KiB, where SDKs write the member; the content between them is not read.
func IsError(result []byte) bool {
	if len(result) <= 2*maxLook {
		return isTrue(result)
	}
	return isTrue(result[:maxLook]) || isTrueAtEnd(result[len(result)-maxLook:])
}

// isTrue reports whether an object, or the members that are complete in its beginning, have isError: true.
func isTrue(object []byte) (yes bool) {
	if !hasTrue(object) {
		return false
	}
	_ = jsonrpc.Each(object, func(key, value []byte) bool { // an error means that it is not a complete object
		if string(key) == "isError" {
			yes = string(value) == "true"
		}
		return true
	})
	return yes
}

// hasTrue reports whether there is an isError: true anywhere, which most results do not have.
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

// isTrueAtEnd looks at the end of an object: if a text that begins with a key is, with a brace before it, one complete
// object, the key is at the top level.
func isTrueAtEnd(tail []byte) bool {
	for from := 0; ; {
		i := bytes.Index(tail[from:], isErrorKey)
		if i < 0 {
			return false
		}
		i += from
		from = i + len(isErrorKey)
		if i > 0 && tail[i-1] == '\\' || !hasTrue(tail[i:]) {
			continue
		}
		if object := append([]byte{'{'}, tail[i:]...); json.Valid(object) {
			return isTrue(object)
		}
	}
}
