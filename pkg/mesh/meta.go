package mesh

import (
	"encoding/json"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// WithContext returns the params of a tool call with the caller's identity in them, for an extension whose
// spec has context.passthrough (docs/protocol.md, "Call context"). For the native short form params are the
// arguments, whose _meta becomes exactly {agent_id, session_id}. For tools/call the native dialect wants the
// same inside arguments, while MCP gets these two keys in params._meta and keeps every other one. Everything
// else stays byte for byte. Params that are no object are returned as they are: they are the callee's to
// refuse.
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
		return set(params, "_meta", identity)
	case dialect != "mcp":
		args, _ := member(params, "arguments")
		return set(params, "arguments", set(args, "_meta", identity))
	}
	meta, ok := member(params, "_meta")
	if !ok || meta[0] != '{' {
		return set(params, "_meta", identity)
	}
	meta = set(meta, "agent_id", quote(agent))
	return set(params, "_meta", set(meta, "session_id", quote(session)))
}

func member(object []byte, name string) ([]byte, bool) {
	at, ok := jsonrpc.Member(object, name)
	return at.In(object), ok
}

func set(object []byte, name string, value []byte) []byte {
	if out, ok := jsonrpc.SetMember(object, name, value); ok {
		return out
	}
	return object
}
