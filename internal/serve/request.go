package serve

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func checkRequest(data []byte, env *jsonrpc.Envelope) *rpc.Error {
	switch {
	case !utf8.Valid(data):
		if !utf8.Valid(env.ID) {
			env.ID = nil
		}
		return rpc.Errorf(rpc.CodeParse, rpc.RanNo, "the request is not UTF-8")
	case env.Method == nil:
		return rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request has no "method"`)
	case !jsonrpc.ValidID(env.ID):
		return rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request needs an "id": a number or a short string`)
	}
	if env.Method[0] != '"' {
		return rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `the request's "method" is not a string`)
	}
	if shutdown := string(env.Method) == `"shutdown"` || bytes.IndexByte(env.Method, '\\') >= 0 && env.MethodName() == "shutdown"; shutdown || len(env.Method) == 2 {
		return rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %.128s is not offered on the mesh", env.Method)
	}
	return nil
}

// deadline returns when the caller stops waiting. Ext-Timeout is a duration from the arrival of the request, so that the
// clocks of caller and instance do not matter.
func (s *service) deadline(h nats.Header, now time.Time) (time.Time, *rpc.Error) {
	timeout := s.opt.CallTimeout
	if len(h) == 0 {
		return now.Add(timeout), nil
	}
	if v := h.Get(wire.HeaderTimeout); v != "" {
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms <= 0 {
			return now, rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, "%s %q is not a number of milliseconds above 0", wire.HeaderTimeout, v)
		}
		timeout = s.opt.MaxCallTimeout
		if ms < timeout.Milliseconds() {
			timeout = time.Duration(ms) * time.Millisecond
		}
	}
	return now.Add(timeout), nil
}
