package calls

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The outcomes of calls that are not kinds of the mesh's errors.
const (
	OK        = "ok"
	ToolError = "tool_error" // an MCP result with isError
	Own       = "extension"  // an error that the extension itself has answered with
)

// End is a call that has ended. Ended does not keep it.
type End struct {
	Instance             string
	Tool                 string // a tool that the extension has; "" for other methods and unknown tools
	Method               string // used if Tool is empty
	CallID               string
	Agent, Session       string
	Traceparent          string
	At                   time.Time // when it was answered
	Took                 time.Duration
	Refused              bool // on arrival; Took has no meaning
	Code                 rpc.Code
	Err                  *rpc.Error // an error that the mesh has made
	ToolFailed           bool       // the result states that the tool failed
	RequestSize, Answers int64      // bytes
}

func (c *End) failed() bool { return c.Code != 0 || c.ToolFailed }

func (c *End) outcome() string {
	switch {
	case c.Err != nil && c.Err.Code.Kind() != "":
		return c.Err.Code.Kind()
	case c.Code != 0:
		return Own
	case c.ToolFailed:
		return ToolError
	}
	return OK
}

// Record is one call in the answers of a bridge (docs/protocol.md, "Control").
type Record struct {
	At       time.Time `json:"ts"` // when it was answered
	ID       string    `json:"id"`
	Method   string    `json:"method,omitempty"` // tools/NAME for a tool
	Instance string    `json:"instance,omitempty"`
	CallID   string    `json:"call_id,omitempty"`
	Agent    string    `json:"agent,omitempty"` // as the caller claims
	Session  string    `json:"session,omitempty"`
	Trace    string    `json:"trace,omitempty"`
	TookUS   int64     `json:"took_us"`
	Outcome  string    `json:"outcome"` // ok, tool_error, extension, or the kind of an error of the mesh
	Code     rpc.Code  `json:"code,omitempty"`
	Ran      rpc.Ran   `json:"ran,omitempty"`
	Reason   string    `json:"reason,omitempty"` // of an error of the mesh: an exit status, or why there is no instance
	In       int64     `json:"in"`               // bytes of the request
	Out      int64     `json:"out"`              // bytes of the result
}

// The longest texts of a record, in bytes: a record takes less than a kilobyte.
const (
	maxText   = 128
	maxReason = 160
)

// record copies what is kept of c.
func (c *End) record(id string) Record {
	r := Record{At: c.At.UTC(), ID: id, Instance: c.Instance, CallID: words.Clip(c.CallID, maxText), Agent: words.Clip(c.Agent, maxText),
		Session: words.Clip(c.Session, maxText), Trace: traceID(c.Traceparent), TookUS: c.Took.Microseconds(), Outcome: c.outcome(),
		Code: c.Code, In: c.RequestSize, Out: c.Answers}
	if c.Tool != "" {
		r.Method = "tools/" + words.Clip(c.Tool, maxText)
	} else {
		r.Method = words.Clip(c.Method, maxText)
	}
	if c.Err != nil {
		d := c.Err.Details()
		r.Ran = d.Ran
		if r.Reason = d.Status; r.Reason == "" {
			r.Reason = d.Reason
		}
		r.Reason = words.Clip(r.Reason, maxReason)
	}
	return r
}

// traceID returns the trace of a traceparent header, VERSION-TRACE-PARENT-FLAGS.
func traceID(parent string) string {
	_, rest, _ := strings.Cut(parent, "-")
	id, _, _ := strings.Cut(rest, "-")
	if len(id) != 32 {
		return ""
	}
	return strings.Clone(id)
}
