package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestAnswer: every request has a response that fits into a message, with its id, unless that is invalid.
func TestAnswer(t *testing.T) {
	const limit = 10_000
	const ping = `{"id":7,"method":"ping"}`
	around := len(`{"jsonrpc":"2.0","id":7,"result":""}`)
	quoted := func(size int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("<", size) + `"`) }
	for name, c := range map[string]struct {
		request string
		result  json.RawMessage
		err     error
		id      string
		want    rpc.Code
	}{
		"a result":                 {ping, json.RawMessage(`{}`), nil, "7", 0},
		"as large as may be":       {ping, quoted(limit - around), nil, "7", 0},
		"too large by a byte":      {ping, quoted(limit - around + 1), nil, "7", rpc.CodeTooLarge},
		"an error":                 {ping, nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "no"), "7", rpc.CodeInvalidParams},
		"an error too large":       {ping, nil, &rpc.Error{Code: rpc.CodeInvalidParams, Data: quoted(limit - 200)}, "7", rpc.CodeTooLarge},
		"an error of another type": {ping, nil, errors.New("broken"), "7", rpc.CodeInternal},
		"no JSON":                  {`{"id":7,`, nil, nil, "null", rpc.CodeParse},
		"a batch":                  {`[` + ping + `]`, nil, nil, "null", rpc.CodeInvalidRequest},
		"no method":                {`{"id":7}`, nil, nil, "7", rpc.CodeInvalidRequest},
		"no id":                    {`{"method":"ping"}`, nil, nil, "null", rpc.CodeInvalidRequest},
		"an object as id":          {`{"id":{},"method":"ping"}`, nil, nil, "null", rpc.CodeInvalidRequest},
		"neither":                  {`{"id":{}}`, nil, nil, "null", rpc.CodeInvalidRequest},
	} {
		h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return c.result, c.err })
		data, e := Answer(t.Context(), h, []byte(c.request), limit)
		var got struct {
			ID     json.RawMessage `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *rpc.Error      `json:"error"`
		}
		if err := json.Unmarshal(data, &got); err != nil || string(got.ID) != c.id {
			t.Errorf("%s: %.100s, %v", name, data, err)
			continue
		}
		code, size := rpc.Code(0), len(data)
		if got.Error != nil {
			code, size = got.Error.Code, len(data)+headerRoom
		}
		if code != c.want || c.want == 0 && string(got.Result) != string(c.result) || (e == nil) != (code == 0) || e != nil && e.Code != code {
			t.Errorf("%s: %.300s, %v", name, data, e)
		}
		if size > limit {
			t.Errorf("%s: a message of %d bytes", name, size)
		}
	}
}
