package registry

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// answerRoom is kept free of MaxPayload for the headers of an error, or for the members around the entries of a page.
const answerRoom = 1024

// handle answers one request if its reply subject is an inbox. A registry may write the catalog and publish control
// messages, so a caller could otherwise direct the answer there.
func (r *Registry) handle(ctx context.Context, req micro.Request) {
	if !r.cfg.Prefix.MayAnswer(req.Reply()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, loopTimeout)
	defer cancel()
	var env struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	var result any
	var err error
	switch e := json.Unmarshal(req.Data(), &env); {
	case !json.Valid(req.Data()):
		err = rpc.Errorf(rpc.CodeParse, rpc.RanNo, "the request is not JSON-RPC: %v", e)
	case e != nil || env.Method == "":
		err = rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request must be an object with a "method"`)
	case !jsonrpc.ValidID(env.ID):
		env.ID = nil
		err = rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request needs an "id": a number or a short string`)
	default:
		result, err = r.dispatch(ctx, env.Method, env.Params)
	}
	if !jsonrpc.ValidID(env.ID) {
		env.ID = json.RawMessage("null")
	}
	data, headers := answer(env.ID, result, err, r.nc.MaxPayload())
	if err := req.Respond(data, micro.WithHeaders(headers)); err != nil {
		r.cfg.Logger.Warn("cannot answer", "method", words.Clip(env.Method, 100), "error", err)
	}
}

// answer encodes a response with headers that fits into a message of limit bytes. A result that is too large or
// cannot be encoded becomes an error, because without an answer the caller would only time out.
func answer(id json.RawMessage, result any, err error, limit int64) ([]byte, micro.Headers) {
	response := map[string]any{"jsonrpc": "2.0", "id": id}
	if err == nil {
		response["result"] = result
		data, e := plainjson.Marshal(response)
		switch {
		case e != nil:
			err = e
		case int64(len(data)) > limit:
			err = tooLarge(len(data), limit)
		default:
			return data, nil
		}
		delete(response, "result")
	}
	e := rpc.AsError(err)
	response["error"] = e
	data, _ := plainjson.Marshal(response) // cannot fail: strings, and data that was encoded before
	if limit -= answerRoom; int64(len(data)) > limit {
		e = tooLarge(len(data), limit)
		response["error"] = e
		data, _ = plainjson.Marshal(response)
	}
	return data, micro.Headers{micro.ErrorCodeHeader: {strconv.Itoa(int(e.Code))}, micro.ErrorHeader: {words.Clip(e.Message, 200)}}
}

func tooLarge(size int, limit int64) *rpc.Error {
	return rpc.NewError(rpc.CodeTooLarge, rpc.Details{Ran: rpc.RanNo, Size: int64(size), Limit: limit},
		"the answer of %d bytes is over this server's limit of %d", size, limit)
}
