package bridge

import (
	"encoding/json"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// past answers the methods about calls that have ended.
func (c *control) past(r *rpc.Request) (json.RawMessage, error) {
	var q calls.Query
	if len(r.Params) > 0 {
		if err := json.Unmarshal(r.Params, &q); err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "params of %s: %v", r.Method, err)
		}
	}
	if r.Method == "stats" {
		return json.Marshal(calls.Stats{Since: c.b.name.self.Since, BoundsUS: calls.BoundsUS(), Tools: c.b.calls.Stats(q.ID)})
	}
	return c.calls(q)
}

// calls returns the failed and the slowest calls that are kept, as many as fit into one message.
func (c *control) calls(q calls.Query) (json.RawMessage, error) {
	kept, more := c.b.calls.Calls(q)
	out, room := []json.RawMessage{}, maxLogs
	for _, r := range kept {
		text, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if room -= len(text) + 1; room < 0 {
			more = true
			break
		}
		out = append(out, text)
	}
	return json.Marshal(struct {
		Calls []json.RawMessage `json:"calls"`
		More  bool              `json:"more,omitempty"`
	}{out, more})
}
