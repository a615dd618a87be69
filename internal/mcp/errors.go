package mcp

import (
	"encoding/json"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Error codes of the modern era.
const (
	CodeHeaderMismatch     rpc.Code = -32020
	CodeMissingCapability  rpc.Code = -32021
	CodeUnsupportedVersion rpc.Code = -32022
)

// CodeNoResource is the code for an unknown resource in the legacy era. In the modern era it is that of invalid params.
const CodeNoResource rpc.Code = -32002

// NewError makes a JSON-RPC error of the protocol. data is encoded as JSON; nil leaves it out.
func NewError(code rpc.Code, message string, data any) *rpc.Error {
	e := &rpc.Error{Code: code, Message: message}
	if data != nil {
		text, err := plainjson.Marshal(data)
		if err != nil { // strings and lists of strings always encode
			panic(err)
		}
		e.Data = text
	}
	return e
}

// UnknownMethod is the error for a method that is not offered in the request's era.
func UnknownMethod(method string) *rpc.Error {
	return NewError(rpc.CodeMethodNotFound, "Method not found: "+words.Clip(method, 128), nil)
}

func invalidParams(message string) *rpc.Error { return NewError(rpc.CodeInvalidParams, message, nil) }

// UnsupportedVersion is the error for a version that is not the modern one.
func UnsupportedVersion(requested string) *rpc.Error {
	return NewError(CodeUnsupportedVersion, "Unsupported protocol version: "+words.Clip(requested, 64), map[string]any{
		"supported": []string{Modern}, "requested": words.Clip(requested, 64),
	})
}

// unquote decodes a JSON string; ok is false if raw is not one.
func unquote(raw []byte) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	for _, c := range raw {
		if c == '\\' || c >= 0x80 {
			err := json.Unmarshal(raw, &s)
			return s, err == nil
		}
	}
	return string(raw[1 : len(raw)-1]), true
}
