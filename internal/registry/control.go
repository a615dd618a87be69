package registry

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/nats-io/nats.go"
)

// controlVerbs are the verbs of P.registry.<verb>.> that registries act on, each with the name under which its refusals
// are counted.
var controlVerbs = map[string]string{"announce": "announce", "heartbeat": "beat", "shutdown": "shutdown", "suspect": "suspect",
	"breaker": "breaker", "host": "host", "skills": "skills"}

// checkControl refuses messages that cannot be control messages. Somebody who may not publish on a control subject can
// name it as the reply subject of a request, and whoever answers publishes there with permissions of its own: the NATS
// server, whose answers to a direct get carry headers, or a service, whose answers are JSON-RPC. Control messages are
// neither.
func checkControl(m *nats.Msg) error {
	if m.Header != nil {
		return errors.New("control messages have no headers; this may be an answer that a caller directed here")
	}
	if !bytes.Contains(m.Data, []byte(`"jsonrpc"`)) {
		return nil
	}
	var members struct {
		JSONRPC json.RawMessage `json:"jsonrpc"`
	}
	if json.Unmarshal(m.Data, &members) == nil && members.JSONRPC != nil {
		return errors.New(`control messages have no member "jsonrpc"; this may be an answer that a caller directed here`)
	}
	return nil
}
