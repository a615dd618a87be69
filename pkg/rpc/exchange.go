package rpc

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// Exchange is one request on its way over a Conn without a goroutine of its own: Conn.Start sends it, and
// Sink is told how it ended. It is the forwarding path under Call; whoever forwards fills in the exported
// fields, starts it once, and does not touch it again before Sink has it back.
type Exchange struct {
	Method   string
	Params   []byte    // raw JSON or nil; must stay as it is until Sink has the reply
	Deadline time.Time // covers queueing, writing and answering; zero: none
	Sink     Sink

	// Inner is the exchange that whoever took this one on started for it on another connection, if any; it
	// is what there is to cancel.
	Inner atomic.Pointer[Exchange]

	// Hold has Start leave it unwritten, to be written together with what follows: the next exchange without Hold, or
	// Flush, which whoever sets it has to call soon. It is only looked at by Start.
	Hold bool

	// Everything below belongs to the Conn, under its mutex.
	queued  bool // no byte of it was written (it stands next to Hold, where it takes no room)
	id      uint64
	prev    *Exchange // in the write queue
	next    *Exchange
	raw     []byte // a whole message instead of Method and Params: an answer or a notification
	written func() // told when raw was written or dropped
}

// ID is the id that the Conn gave x in Start; the other side knows the request by it.
func (x *Exchange) ID() uint64 { return x.id }

// Sink is told how an Exchange ended: exactly once, from the connection's reader, its timer, or the
// goroutine that called Start or Cancel. It must not block, and r's bytes are only valid until it returns (but see Reply.Keep).
type Sink interface {
	Deliver(x *Exchange, r Reply)
}

// Reply is the end of an Exchange: the other side's answer, or an error made here because none came.
type Reply struct {
	// Err is set when there is no answer: timeout, cancelled, exited, an answer that was too long or broken.
	Err *Error

	line []byte
	env  Envelope
	from *lineReader // whose buffer line is in; nil: nobody's, or not to be taken away
}

// NewReply is the reply of a handler that ran here: its result or its own error.
func NewReply(result json.RawMessage, err error) Reply {
	if err == nil {
		return Reply{env: Envelope{Result: result}}
	}
	body, merr := json.Marshal(AsError(err))
	if merr != nil {
		body, _ = json.Marshal(&Error{Code: AsError(err).Code, Message: AsError(err).Message})
	}
	return Reply{env: Envelope{Error: body}}
}

// ParseReply reads a response message that came some other way than over a Conn. The reply's bytes are text's.
// The error says why text is no response; an error of odd shape in it is mended.
func ParseReply(text []byte) (Reply, error) {
	env, err := Scan(text)
	if err != nil {
		return Reply{}, err
	}
	if !env.IsResponse() {
		return Reply{}, errors.New("it is JSON, but no JSON-RPC response")
	}
	if env.Result == nil && !isError(&env) {
		return Reply{Err: neither()}, nil
	}
	normalise(&env)
	return Reply{line: text, env: env}, nil
}

// Result is the answer's result, or its error as an *Error. The bytes are those of the connection's buffer.
func (r *Reply) Result() (json.RawMessage, error) {
	switch {
	case r.Err != nil:
		return nil, r.Err
	case isError(&r.env):
		e := new(Error)
		if err := json.Unmarshal(r.env.Error, e); err != nil { // normalised before it came here
			return nil, Errorf(CodeInternal, RanMaybe, "the extension's error is not a JSON-RPC error: %v", err)
		}
		return nil, e
	}
	return json.RawMessage(r.env.Result), nil
}

// ID is the answer's id as it was written; nil where the answer has none.
func (r *Reply) ID() []byte { return r.env.ID }

// ErrorCode is the code of the answer's error or of Err, 0 for a result. An error whose own code is 0 counts
// as CodeInternal here.
func (r *Reply) ErrorCode() Code {
	if r.Err != nil {
		return r.Err.Code
	}
	if !isError(&r.env) {
		return 0
	}
	var e struct{ Code Code }
	if json.Unmarshal(r.env.Error, &e) != nil || e.Code == 0 {
		return CodeInternal
	}
	return e.Code
}

// AppendTo appends the whole response message to dst, with id in the place of the connection's own: the
// rest of the message stays byte for byte what the other side wrote.
func (r *Reply) AppendTo(dst, id []byte) []byte {
	switch {
	case r.Err != nil:
		return AppendError(dst, id, r.Err)
	case r.env.plain:
		dst = append(dst, r.line[:r.env.idAt]...)
		dst = append(dst, id...)
		return append(dst, r.line[r.env.idAt+len(r.env.ID):]...)
	case isError(&r.env):
		return appendResponse(dst, id, `,"error":`, r.env.Error)
	}
	return AppendResult(dst, id, r.env.Result)
}

// Keep returns the message that AppendTo appends, for who goes on with it behind Deliver. A large one is not copied: its
// connection gives the buffer away that it was read into, and has it back with release, after which message must
// not be touched any more. Keep is called during Deliver, at most once, and r is of no use behind it.
func (r *Reply) Keep(id []byte) (message []byte, release func()) {
	shorter := len(r.env.ID) - len(id)
	if r.from == nil || !r.env.plain || shorter < 0 || len(r.line) <= keepBuffer || 4*len(r.line) < 3*len(r.from.buf) {
		return r.AppendTo(make([]byte, 0, r.Size()), id), func() {}
	}
	buf := r.from.detach()
	head := r.env.idAt
	copy(r.line[shorter:], r.line[:head])
	copy(r.line[shorter+head:], id)
	return r.line[shorter:], func() { giveBack(buf) }
}

// Size is about how many bytes AppendTo appends.
func (r *Reply) Size() int { return max(len(r.line), len(r.env.Result)+len(r.env.Error)) + 64 }

// AppendResult appends a response message with a result; an empty one counts as null.
func AppendResult(dst, id, result []byte) []byte {
	if len(result) == 0 {
		result = []byte("null")
	}
	return appendResponse(dst, id, `,"result":`, result)
}

// AppendError appends a response message with an error. An empty id counts as null.
func AppendError(dst, id []byte, e *Error) []byte {
	body, err := json.Marshal(e)
	if err != nil { // Data is not JSON: say the rest
		body, _ = json.Marshal(&Error{Code: e.Code, Message: e.Message})
	}
	return appendResponse(dst, id, `,"error":`, body)
}

func appendResponse(dst, id []byte, member string, body []byte) []byte {
	if len(id) == 0 {
		id = []byte("null")
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, member...)
	dst = append(dst, body...)
	return append(dst, '}')
}

// AppendRequest appends a request message, or a notification when id is empty.
func AppendRequest(dst, id []byte, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if len(id) > 0 {
		dst = append(dst, `"id":`...)
		dst = append(dst, id...)
		dst = append(dst, ',')
	}
	dst = append(dst, `"method":`...)
	dst = plainjson.AppendString(dst, method)
	if len(params) > 0 {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

// maxFrame is how long appendFrame's line is at most, unless the method is full of characters to escape.
func (x *Exchange) maxFrame() int { return len(x.raw) + len(x.Method) + len(x.Params) + 64 }

// appendFrame appends x as a line.
func (x *Exchange) appendFrame(dst []byte) []byte {
	if x.raw != nil {
		return append(appendOneLine(dst, x.raw), '\n')
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = strconv.AppendUint(dst, x.id, 10)
	dst = append(dst, `,"method":`...)
	dst = plainjson.AppendString(dst, x.Method)
	if len(x.Params) > 0 {
		dst = append(dst, `,"params":`...)
		dst = appendOneLine(dst, x.Params)
	}
	return append(dst, "}\n"...)
}

// isError reports whether a response is an error: its error member is there and not null.
func isError(e *Envelope) bool { return e.Error != nil && string(e.Error) != "null" }

// normalise fixes a response of odd shape, which has a result or an error, so that what leaves here is JSON-RPC: an
// error becomes an object with an integer code and a string message; both a result and an error become the error,
// unless the result is not null.
func normalise(e *Envelope) {
	switch {
	case isError(e) && e.Result != nil && string(e.Result) != "null":
		e.Error, e.plain = nil, false
	case isError(e):
		if e.Result != nil {
			e.plain = false
		}
		if mended := mend(e.Error); mended != nil {
			e.Error, _ = json.Marshal(mended) // Data was scanned: it is JSON
			e.plain = false
		}
	case e.Error != nil: // null, next to a result
		e.plain = false
	}
}

// mend makes an error object of what an extension answered instead of one; nil if it is one already.
func mend(raw []byte) *Error {
	e := &Error{Code: CodeInternal, Message: "the extension answered with an error of odd shape", Data: raw}
	read := func(name string, v any) bool {
		at, ok := Member(raw, name)
		return ok && string(at.In(raw)) != "null" && json.Unmarshal(at.In(raw), v) == nil
	}
	code, message := read("code", &e.Code), read("message", &e.Message)
	if code && message {
		return nil
	}
	if !code {
		e.Code = CodeInternal
	}
	if s := ""; json.Unmarshal(raw, &s) == nil {
		e.Message = s
	}
	return e
}
