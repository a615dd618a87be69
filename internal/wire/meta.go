package wire

import (
	"encoding/json"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/plainjson"
)

// WithContext returns the params of a tool call with the identity of the caller in them, for an extension that has
// context.passthrough in its spec (docs/protocol.md, "Call context"). In the native short form, params are the arguments,
// and their _meta becomes exactly {agent_id, session_id}. In tools/call the native dialect expects the same inside
// arguments, while MCP gets these two keys in params._meta, next to the other ones. All other bytes are unchanged. Params
// that are not an object are returned unchanged: the callee refuses them.
func WithContext(method, dialect string, params json.RawMessage, agent, session string) json.RawMessage {
	who := struct {
		Agent   string `json:"agent_id"`
		Session string `json:"session_id"`
	}{agent, session}
	identity, err := json.Marshal(who)
	if err != nil { // two strings always encode
		panic(err)
	}
	switch {
	case method != "tools/call":
		return SetMember(params, "_meta", identity)
	case dialect != "mcp":
		args, _ := MemberOf(params, "arguments")
		return SetMember(params, "arguments", SetMember(args, "_meta", identity))
	}
	meta, ok := MemberOf(params, "_meta")
	if !ok || meta[0] != '{' {
		return SetMember(params, "_meta", identity)
	}
	meta = SetMember(meta, "agent_id", Quote(agent))
	return SetMember(params, "_meta", SetMember(meta, "session_id", Quote(session)))
}

func MemberOf(object []byte, name string) ([]byte, bool) {
	at, ok := jsonrpc.Member(object, name)
	return at.In(object), ok
}

func SetMember(object []byte, name string, value []byte) []byte {
	if out, ok := jsonrpc.SetMember(object, name, value); ok {
		return out
	}
	return object
}

// WithoutMeta returns a native tool's arguments without the member _meta: it is the context of the call, and not one of the
// arguments that the tool's schema describes.
func WithoutMeta(args json.RawMessage) json.RawMessage {
	if _, ok := jsonrpc.Member(args, "_meta"); !ok {
		return args
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil {
		return args
	}
	delete(members, "_meta")
	text, err := plainjson.Marshal(members)
	if err != nil {
		return args
	}
	return text
}
