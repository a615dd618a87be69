package serve

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// outcome is how a call ended, for the log of calls.
type outcome struct {
	tool       string // set by the handler
	toolFailed bool   // set by the handler
	code       rpc.Code
	err        *rpc.Error // made by the mesh
	size       int        // of the answer
}

// CallSink is a jsonrpc.Sink that records what is called, like the sink of a call to an instance with a log of calls.
type CallSink interface {
	jsonrpc.Sink
	// SetTool sets the tool that is called, one that the instance has. It is called before the call is forwarded.
	SetTool(name string)
	// SetToolFailed records that the result states that the tool failed. It is called before Deliver.
	SetToolFailed()
	// Began returns when the request arrived.
	Began() time.Time
}

// SetTool implements CallSink.
func (c *call) SetTool(name string) { c.tool = name }

// Began implements CallSink.
func (c *call) Began() time.Time { return c.began }

// SetToolFailed implements CallSink.
func (c *call) SetToolFailed() { c.toolFailed = true }

// refuse answers with an error of the mesh.
func (c *call) refuse(e *rpc.Error) {
	c.code, c.err = e.Code, e
	c.s.refuse(c.at, c.reply, c.id, e)
}

// refuseRequest refuses a request on arrival.
func (s *service) refuseRequest(at *endpoint, req *nats.Msg, env *jsonrpc.Envelope, e *rpc.Error) {
	s.refuse(at, req.Reply, env.ID, e)
	if l := s.inst.log; l != nil {
		h := req.Header
		l.Ended(&calls.End{Instance: s.inst.instance, Method: env.MethodName(), CallID: h.Get(wire.HeaderCallID), Agent: h.Get(wire.HeaderAgent),
			Session: h.Get(wire.HeaderSession), Traceparent: h.Get(wire.HeaderTraceparent), At: time.Now(), Refused: true, Code: e.Code, Err: e,
			RequestSize: int64(len(req.Data))})
	}
}

// log keeps a call that has ended.
func (c *call) log(took time.Duration, callID string) {
	if l := c.s.inst.log; l != nil {
		l.Ended(&calls.End{Instance: c.s.inst.instance, Tool: c.tool, Method: c.request.Method, CallID: callID, Agent: c.request.Agent,
			Session: c.request.Session, Traceparent: c.request.Traceparent, At: c.began.Add(took), Took: took, Code: c.code, Err: c.err,
			ToolFailed: c.toolFailed, RequestSize: c.bytes, Answers: int64(c.size)})
	}
}
