package registry

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/nats-io/nats.go"
)

// controlVerbs maps the verbs of P.registry.<verb>.> that registries handle to the name under which refused messages
// are counted.
var controlVerbs = map[string]string{"announce": "announce", "heartbeat": "beat", "shutdown": "shutdown", "suspect": "suspect",
	"host": "inventory"}

// refusable are the names under which refused messages are counted.
var refusable = []string{"announce", "beat", "catalog event", "document", "inventory", "shutdown", "suspect"}

// checkControl refuses messages that cannot be control messages. A client without permission to publish on a control
// subject can use it as the reply subject of a request; the responder then publishes there with its own permissions.
// Responders are the NATS server, which sets headers in replies to a direct get, or a service, which replies in
// JSON-RPC. Control messages have neither.
func checkControl(m *nats.Msg) error {
	if m.Header != nil {
		return errors.New("control messages have no headers; this may be a reply to a request with this reply subject")
	}
	if !bytes.Contains(m.Data, []byte(`"jsonrpc"`)) {
		return nil
	}
	var members struct {
		JSONRPC json.RawMessage `json:"jsonrpc"`
	}
	if json.Unmarshal(m.Data, &members) == nil && members.JSONRPC != nil {
		return errors.New(`control messages have no member "jsonrpc"; this may be a reply to a request with this reply subject`)
	}
	return nil
}
