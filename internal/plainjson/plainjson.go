// Package plainjson writes JSON as everybody else does: encoding/json's, without its escapes of <, > and & for HTML,
// which nobody here is. They would change what a descriptor or a result says, if not what it means.
package plainjson

import (
	"bytes"
	"encoding/json"
)

// Marshal is json.Marshal without the escapes.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
}

// AppendString appends s as a JSON string. Names of methods and tools seldom need more than quotes.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			text, err := Marshal(s)
			if err != nil { // a string always encodes
				panic(err)
			}
			return append(dst, text...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
