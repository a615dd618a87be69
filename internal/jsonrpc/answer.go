package jsonrpc

import (
	"context"
	"encoding/json"
	"unicode/utf8"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// headerRoom is what the headers that describe an error on NATS need of a message.
const headerRoom = 1024

// Answer handles one request with h and returns the encoded response, of at most limit bytes. If it is an error, Answer
// returns that error, too. A response that is too large is replaced by an error, because without a response the client
// would only time out.
func Answer(ctx context.Context, h rpc.Handler, request []byte, limit int64) (response []byte, e *rpc.Error) {
	env, err := Scan(request)
	var result json.RawMessage
	switch {
	case err != nil:
		env.ID = nil // what was read before the error is not its id
		err = NotARequest(request, err)
	case !ValidID(env.ID):
		env.ID = nil
		err = rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request needs an "id": a number or a short string`)
	case env.MethodName() == "":
		err = rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request has no "method"`)
	default:
		result, err = ProtectLoud(ctx, h, &rpc.Request{ID: env.ID, Method: env.MethodName(), Params: env.Params})
	}
	if err == nil {
		response = AppendResult(nil, env.ID, result)
	} else {
		e = rpc.AsError(err)
		response = AppendError(nil, env.ID, e)
		limit -= headerRoom
	}
	if size := int64(len(response)); size > limit {
		e = rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: size, Limit: limit},
			"the response is %d bytes, over this server's limit of %d; request less", size, limit)
		response = AppendError(nil, env.ID, e)
	}
	return response, e
}

// NotARequest distinguishes text that is not JSON from JSON that is not a request, such as a batch. err is the error of Scan.
func NotARequest(text []byte, err error) *rpc.Error {
	if utf8.Valid(text) && json.Valid(text) {
		return rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, "the message is JSON, but no request: %v", err)
	}
	return rpc.Errorf(rpc.CodeParse, rpc.RanNo, "the request is not JSON: %v", err)
}
