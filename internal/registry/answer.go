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

// answerRoom is kept free of MaxPayload for the members around the entries of a page.
const answerRoom = 1024

// handle answers one request if its reply subject is an inbox. A registry may write the catalog and publish control
// messages, so a caller could otherwise direct the answer there.
func (r *Registry) handle(ctx context.Context, req micro.Request) {
	if !r.cfg.Prefix.MayAnswer(req.Reply()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, loopTimeout)
	defer cancel()
	method := "" // none was read
	h := rpc.HandlerFunc(func(ctx context.Context, q *rpc.Request) (json.RawMessage, error) {
		method = q.Method
		result, err := r.dispatch(ctx, q.Method, q.Params)
		if err != nil {
			return nil, err
		}
		return plainjson.Marshal(result)
	})
	data, e := jsonrpc.Answer(ctx, h, req.Data(), r.nc.MaxPayload())
	var headers micro.Headers
	if e != nil {
		headers = micro.Headers{micro.ErrorCodeHeader: {strconv.Itoa(int(e.Code))}, micro.ErrorHeader: {words.Clip(e.Message, 200)}}
	}
	if err := req.Respond(data, micro.WithHeaders(headers)); err != nil {
		r.cfg.Logger.Warn("cannot answer a request", "method", words.Clip(method, 100), "error", err)
	}
}
