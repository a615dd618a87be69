package mcp

import (
	"bytes"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Params are the members of a request's params that more than one method has, as slices of the message. An absent member
// is nil.
type Params struct {
	Meta      Meta
	Name      []byte
	URI       []byte
	Arguments []byte
	Cursor    []byte

	name   string // Name, decoded
	isName bool   // it is a string
}

// Meta is a request's params._meta.
type Meta struct {
	Raw             []byte // the whole object; nil if absent
	ProtocolVersion []byte // modern era
	Capabilities    []byte // modern era
	ClientInfo      []byte // modern era
	ProgressToken   []byte // nil if it is neither a string nor a number
	Traceparent     []byte
	LogLevel        []byte // modern era
	version         string // ProtocolVersion, decoded
	isVersion       bool   // it is a string
	foreign         bool   // it has members that are for the extension
}

// ParseParams reads params, which may be nil. The error is a -32602.
func ParseParams(params []byte) (p Params, e *rpc.Error) {
	if len(params) == 0 || string(params) == "null" {
		return p, nil
	}
	var meta []byte
	err := jsonrpc.Each(params, func(key, value []byte) bool {
		switch string(keyName(key)) {
		case "_meta":
			meta = value
		case "name":
			p.Name = value
			p.name, p.isName = unquote(value)
		case "uri":
			p.URI = value
		case "arguments":
			p.Arguments = value
		case "cursor":
			p.Cursor = value
		}
		return true
	})
	if err != nil {
		return p, invalidParams("params must be an object")
	}
	p.Meta, e = parseMeta(meta)
	return p, e
}

func parseMeta(raw []byte) (m Meta, e *rpc.Error) {
	if len(raw) == 0 || string(raw) == "null" {
		return m, nil
	}
	m.Raw = raw
	err := jsonrpc.Each(raw, func(key, value []byte) bool {
		switch name := keyName(key); string(name) {
		case MetaProtocolVersion:
			m.ProtocolVersion = value
			m.version, m.isVersion = Modern, true
			if string(value) != `"`+Modern+`"` {
				m.version, m.isVersion = unquote(value)
			}
		case MetaCapabilities:
			m.Capabilities = value
		case MetaClientInfo:
			m.ClientInfo = value
		case MetaLogLevel:
			m.LogLevel = value
		case metaProgressToken:
			if value[0] == '"' || value[0] == '-' || '0' <= value[0] && value[0] <= '9' {
				m.ProgressToken = value
			}
		default:
			if string(name) == metaTraceparent {
				m.Traceparent = value
			}
			m.foreign = m.foreign || !isProtocols(name)
		}
		return true
	})
	if err != nil {
		return m, invalidParams("params._meta must be an object")
	}
	return m, nil
}

// ForExtension returns the members of _meta that a request passes on: all but the progress token, which belongs to this
// connection, and the protocol's own. It returns nil if there are none.
func (m *Meta) ForExtension() []byte {
	if !m.foreign {
		return nil
	}
	return rebuild(m.Raw, func(name string, value []byte) []byte { // parseMeta has checked that it is an object
		if name == metaProgressToken || isProtocols([]byte(name)) {
			return nil
		}
		return value
	})
}

// Trace returns the trace of the request (W3C Trace Context), or "".
func (m *Meta) Trace() string {
	s, _ := unquote(m.Traceparent)
	return s
}

// ClientName returns the name in a clientInfo object, or "".
func ClientName(clientInfo []byte) string {
	name, _ := memberOf(clientInfo, "name")
	text, _ := unquote(name)
	return words.Clip(text, 64)
}

// Text returns a member of the params that must be a text.
func (p *Params) Text(member string, value []byte) (string, *rpc.Error) {
	text, ok := unquote(value)
	if !ok {
		return "", invalidParams("params." + member + " must be a text")
	}
	return text, nil
}

// ToolName returns the name of the tool that a tools/call request calls.
func (p *Params) ToolName() (string, *rpc.Error) {
	if !p.isName {
		return "", invalidParams(`params.name must be the name of a tool`)
	}
	return p.name, nil
}

// ToolArguments returns the arguments of a tools/call request, unchanged; nil if it has none.
func (p *Params) ToolArguments() ([]byte, *rpc.Error) {
	switch {
	case len(p.Arguments) == 0 || string(p.Arguments) == "null":
		return nil, nil
	case p.Arguments[0] != '{':
		return nil, invalidParams("params.arguments must be an object")
	}
	return p.Arguments, nil
}

// Classify returns the era of a request. The error is for a request that claims the modern era without what that era
// requires.
func Classify(method string, m *Meta) (Era, *rpc.Error) {
	if m.ProtocolVersion == nil {
		if method == MethodDiscover {
			return EraModern, invalidParams("server/discover needs params._meta[\"" + MetaProtocolVersion + "\"]")
		}
		return EraLegacy, nil
	}
	switch {
	case !m.isVersion:
		return EraModern, invalidParams(`params._meta["` + MetaProtocolVersion + `"] must be a string`)
	case m.version != Modern:
		return EraModern, UnsupportedVersion(m.version)
	case len(m.Capabilities) == 0 || m.Capabilities[0] != '{':
		return EraModern, invalidParams(`params._meta["` + MetaCapabilities + `"] must be an object`)
	}
	return EraModern, nil
}

// isProtocols reports whether a member of _meta belongs to the protocol.
func isProtocols(name []byte) bool { return bytes.HasPrefix(name, []byte(metaPrefix)) }

// keyName decodes the escapes in a member's raw key.
func keyName(key []byte) []byte {
	if bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	quoted := append(append([]byte{'"'}, key...), '"')
	s, _ := unquote(quoted)
	return []byte(s)
}
