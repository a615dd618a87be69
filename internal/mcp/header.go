package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/textproto"
	"strings"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Headers of the HTTP transport, in the canonical form of net/http.
const (
	HeaderVersion     = "Mcp-Protocol-Version"
	HeaderSession     = "Mcp-Session-Id"
	HeaderLastEventID = "Last-Event-Id"
	HeaderMethod      = "Mcp-Method"
	HeaderName        = "Mcp-Name"
	headerParamPrefix = "Mcp-Param-"
)

// Headers gives access to the headers of a request; http.Header implements it.
type Headers interface{ Values(key string) []string }

// CheckHeaders checks that the headers of a modern HTTP request state the same as its body, as the protocol requires.
// schema is the input schema of the tool that is called, or nil.
func CheckHeaders(h Headers, method string, p *Params, schema json.RawMessage) *rpc.Error {
	if e := CheckVersionHeader(h, p); e != nil {
		return e
	}
	if e := checkHeader(h, HeaderMethod, method); e != nil {
		return e
	}
	var name string
	switch method {
	case MethodCallTool, MethodGetPrompt:
		name = p.name
	case MethodReadResource:
		name, _ = unquote(p.URI)
	default:
		return nil
	}
	if e := checkHeader(h, HeaderName, name); e != nil {
		return e
	}
	for _, b := range headerParams(schema) {
		value, ok := argumentAt(p.Arguments, b.path)
		if e := checkParam(h, b, value, ok); e != nil {
			return e
		}
	}
	return nil
}

// CheckVersionHeader checks that the header has the protocol version of the body.
func CheckVersionHeader(h Headers, p *Params) *rpc.Error {
	return checkHeader(h, HeaderVersion, p.Meta.version)
}

func mismatch(header, format string, args ...any) *rpc.Error {
	return NewError(CodeHeaderMismatch, "the header "+header+" "+fmt.Sprintf(format, args...), nil)
}

// checkHeader compares a header with a value of the body.
func checkHeader(h Headers, header, want string) *rpc.Error {
	values := h.Values(header)
	if len(values) != 1 {
		return mismatch(header, "must occur once, and occurs %d times", len(values))
	}
	got, ok := headerValue(values[0])
	if !ok {
		return mismatch(header, "is not valid base64 of UTF-8 text")
	}
	if got != want {
		return mismatch(header, "is %.100q, but the body has %.100q", got, want)
	}
	return nil
}

// headerValue decodes =?base64?…?=, in which a client sends text that a header cannot carry.
func headerValue(v string) (string, bool) {
	v = textproto.TrimString(v)
	encoded, ok := strings.CutPrefix(v, "=?base64?")
	if !ok {
		return v, true
	}
	if encoded, ok = strings.CutSuffix(encoded, "?="); !ok {
		return v, true
	}
	text, err := base64.StdEncoding.Strict().DecodeString(encoded)
	return string(text), err == nil && utf8.Valid(text)
}

// headerParam is a property of an input schema that clients repeat in a header.
type headerParam struct {
	path   []string
	header string
}

// maxHeaderParams limits the properties of a schema that are looked at.
const maxHeaderParams = 1000

// headerParams finds the properties with the annotation x-mcp-header.
func headerParams(schema json.RawMessage) []headerParam {
	if !bytes.Contains(schema, []byte("x-mcp-header")) {
		return nil
	}
	var out []headerParam
	left := maxHeaderParams
	var walk func(schema []byte, path []string)
	walk = func(schema []byte, path []string) {
		at, ok := memberOf(schema, "properties")
		if !ok || len(path) > 16 {
			return
		}
		_ = jsonrpc.Each(at, func(key, property []byte) bool {
			if left--; left < 0 {
				return false
			}
			here := append(path[:len(path):len(path)], string(keyName(key)))
			if raw, ok := memberOf(property, "x-mcp-header"); ok {
				if name, ok := unquote(raw); ok && name != "" {
					out = append(out, headerParam{here, headerParamPrefix + name})
				}
			}
			walk(property, here)
			return true
		})
	}
	walk(schema, nil)
	return out
}

func memberOf(object []byte, name string) ([]byte, bool) {
	if !isObject(object) {
		return nil, false
	}
	at, ok := jsonrpc.Member(object, name)
	return at.In(object), ok
}

func argumentAt(args []byte, path []string) (value []byte, ok bool) {
	value = args
	for _, name := range path {
		if value, ok = memberOf(value, name); !ok {
			return nil, false
		}
	}
	return value, string(value) != "null"
}

// checkParam compares the header of a parameter with its argument: integers by value, all else as text.
func checkParam(h Headers, b headerParam, value []byte, present bool) *rpc.Error {
	values := h.Values(textproto.CanonicalMIMEHeaderKey(b.header))
	switch {
	case !present && len(values) == 0:
		return nil
	case !present:
		return mismatch(b.header, "has a value, but the argument %s is absent", strings.Join(b.path, "."))
	case len(values) != 1:
		return mismatch(b.header, "must occur once, as the argument %s is present", strings.Join(b.path, "."))
	}
	got, ok := headerValue(values[0])
	if !ok {
		return mismatch(b.header, "is not valid base64 of UTF-8 text")
	}
	want := string(value)
	if value[0] == '"' {
		want, _ = unquote(value)
	}
	if got == want || sameNumber(got, value) {
		return nil
	}
	return mismatch(b.header, "differs from the argument %s", strings.Join(b.path, "."))
}

// sameNumber reports whether a header has the value of a JSON number, such as 1 for 1.0.
func sameNumber(header string, value []byte) bool {
	if value[0] != '-' && (value[0] < '0' || value[0] > '9') || len(header) > 32 || len(value) > 32 {
		return false
	}
	if strings.ContainsAny(header+string(value), "eEpPxX/_") {
		return false
	}
	a, okA := new(big.Rat).SetString(header)
	b, okB := new(big.Rat).SetString(string(value))
	return okA && okB && a.Cmp(b) == 0
}
