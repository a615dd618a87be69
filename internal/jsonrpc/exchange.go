package jsonrpc

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Exchange is one request over a Conn without a goroutine of its own: Conn.Start sends it, and its reply is delivered to
// Sink. Call is built on it, and so is forwarding. The caller fills in the exported fields, starts it once, and must not
// use it again before Sink has received the reply.
type Exchange struct {
	Method   string
	Params   []byte    // raw JSON or nil; must not change until Sink has the reply
	Deadline time.Time // covers queueing, writing and answering; zero: none
	Sink     Sink

	// Inner is the exchange that was started for this one on another connection, if any. To cancel this one, cancel it.
	Inner atomic.Pointer[Exchange]

	// Hold makes Start only queue the exchange. It is written together with the next one without Hold, or by Flush,
	// which the caller has to call soon. Only Start uses Hold.
	Hold bool

	// Everything below belongs to the Conn, under its mutex.
	queued  bool // no byte of it was written (the field is next to Hold, where it takes no space)
	id      uint64
	prev    *Exchange // in the write queue
	next    *Exchange
	raw     []byte // a whole message instead of Method and Params: an answer or a notification
	written func() // called when raw was written or dropped
}

// ID is the id with which the request was sent. The Conn sets it in Start.
func (x *Exchange) ID() uint64 { return x.id }

// Sink receives the reply of an Exchange. Deliver is called exactly once, from the connection's reader, its timer, or
// the goroutine that called Start or Cancel. It must not block, and r's bytes are only valid until it returns (but see
// Reply.Keep).
type Sink interface {
	Deliver(x *Exchange, r Reply)
}

// Reply is the end of an Exchange: the other side's answer, or an error made here because there is no usable answer.
type Reply struct {
	// Err is set if there is no answer: timeout, cancelled, exited, or an answer that was too long or invalid.
	Err *rpc.Error

	line []byte
	env  Envelope
	from *LineReader // the reader that owns line's buffer; nil if Keep must copy
}

// NewReply returns the reply of a handler in this process: its result or its error.
func NewReply(result json.RawMessage, err error) Reply {
	if err == nil {
		return Reply{env: Envelope{Result: result}}
	}
	body, merr := json.Marshal(rpc.AsError(err))
	if merr != nil {
		body, _ = json.Marshal(&rpc.Error{Code: rpc.AsError(err).Code, Message: rpc.AsError(err).Message})
	}
	return Reply{env: Envelope{Error: body}}
}

// ParseReply parses a response message that was not received by a Conn. The reply refers to the bytes of text. ParseReply
// fails if text is not a response; it repairs a malformed error member.
func ParseReply(text []byte) (Reply, error) {
	env, err := Scan(text)
	if err != nil {
		return Reply{}, err
	}
	if !env.IsResponse() {
		return Reply{}, errors.New("it is JSON, but not a JSON-RPC response")
	}
	if env.Result == nil && !isError(&env) {
		return Reply{Err: Neither()}, nil
	}
	normalise(&env)
	return Reply{line: text, env: env}, nil
}

// Result returns the answer's result, or its error as an *Error. The bytes belong to the connection's buffer.
func (r *Reply) Result() (json.RawMessage, error) {
	switch {
	case r.Err != nil:
		return nil, r.Err
	case isError(&r.env):
		e := new(rpc.Error)
		if err := json.Unmarshal(r.env.Error, e); err != nil { // it has been normalised
			return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the extension's error is not a JSON-RPC error: %v", err)
		}
		return nil, e
	}
	return json.RawMessage(r.env.Result), nil
}

// ID returns the answer's raw id, or nil if it has no id.
func (r *Reply) ID() []byte { return r.env.ID }

// ErrorCode returns the code of the answer's error or of Err, or 0 for a result. An error with the code 0 counts as
// CodeInternal.
func (r *Reply) ErrorCode() rpc.Code {
	if r.Err != nil {
		return r.Err.Code
	}
	if !isError(&r.env) {
		return 0
	}
	var e struct{ Code rpc.Code }
	if json.Unmarshal(r.env.Error, &e) != nil || e.Code == 0 {
		return rpc.CodeInternal
	}
	return e.Code
}

// AppendTo appends the whole response message to dst, with the connection's id replaced by id. All other bytes are the
// same as received.
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

// Keep returns the message that AppendTo appends, for use after Deliver has returned. A large message is not copied: the
// connection gives its read buffer to the caller, which returns it with release and must not use message afterwards. Keep
// may be called once, during Deliver; r must not be used after it.
func (r *Reply) Keep(id []byte) (message []byte, release func()) {
	if r.KeepCopies(id) {
		return r.AppendTo(make([]byte, 0, r.Size()), id), func() {}
	}
	buf, unreserve := r.from.detach()
	head, shorter := r.env.idAt, len(r.env.ID)-len(id)
	copy(r.line[shorter:], r.line[:head])
	copy(r.line[shorter+head:], id)
	return r.line[shorter:], func() {
		giveBack(buf)
		unreserve()
	}
}

// KeepCopies reports whether Keep makes a copy, of about Size bytes. A read buffer that it gives away instead remains
// counted by Options.Reserve until it is returned.
func (r *Reply) KeepCopies(id []byte) bool {
	return r.from == nil || !r.env.plain || len(r.env.ID) < len(id) || len(r.line) <= keepBuffer || 4*len(r.line) < 3*len(r.from.buf)
}

// Size returns at least how many bytes AppendTo appends besides the id, and not many more.
func (r *Reply) Size() int {
	if r.Err != nil {
		return len(AppendError(nil, nil, r.Err))
	}
	return max(len(r.line), len(r.env.Result)+len(r.env.Error)) + 64
}

// AppendResult appends a response message with a result; an empty one counts as null.
func AppendResult(dst, id, result []byte) []byte {
	if len(result) == 0 {
		result = []byte("null")
	}
	return appendResponse(dst, id, `,"result":`, result)
}

// AppendError appends a response message with an error. An empty id counts as null.
func AppendError(dst, id []byte, e *rpc.Error) []byte {
	body, err := json.Marshal(e)
	if err != nil { // Data is not JSON: leave it out
		body, _ = json.Marshal(&rpc.Error{Code: e.Code, Message: e.Message})
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

// maxFrame is the maximum length of appendFrame's line, unless the method contains many characters to escape.
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

// isError reports whether a response is an error: it has an error member that is not null.
func isError(e *Envelope) bool { return e.Error != nil && string(e.Error) != "null" }

// normalise repairs a response that has a result or an error, so that what is forwarded is valid JSON-RPC: an error
// becomes an object with an integer code and a string message; of a result and an error only the error remains, unless
// the result is not null.
func normalise(e *Envelope) {
	switch {
	case isError(e) && e.Result != nil && string(e.Result) != "null":
		e.Error, e.plain = nil, false
	case isError(e):
		if e.Result != nil {
			e.plain = false
		}
		if repaired := repairError(e.Error); repaired != nil {
			e.Error, _ = json.Marshal(repaired) // cannot fail: Scan has checked Data
			e.plain = false
		}
	case e.Error != nil: // null, next to a result
		e.plain = false
	}
}

// repairError makes an error object from a malformed error member. It returns nil if raw is a valid error object.
func repairError(raw []byte) *rpc.Error {
	e := &rpc.Error{Code: rpc.CodeInternal, Message: "the extension answered with a malformed error", Data: raw}
	read := func(name string, v any) bool {
		at, ok := Member(raw, name)
		return ok && string(at.In(raw)) != "null" && json.Unmarshal(at.In(raw), v) == nil
	}
	code, message := read("code", &e.Code), read("message", &e.Message)
	if code && message {
		return nil
	}
	if !code {
		e.Code = rpc.CodeInternal
	}
	if s := ""; json.Unmarshal(raw, &s) == nil {
		e.Message = s
	}
	return e
}
