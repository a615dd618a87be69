package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// ErrDenied means that NATS does not allow the user of a Client to call an extension. The call has not run.
var ErrDenied = errors.New("permission denied")

// once sends one request and waits for its answer until deadline, however many messages that takes. It sets t.connects.
func (c *Client) once(ctx context.Context, t *target, deadline time.Time, method string, params json.RawMessage) (a attempt) {
	if err := ctx.Err(); err != nil {
		a.err = outOfTime(t.id, err)
		return a
	}
	if err := c.traffic.Begin(ctx, deadline); err != nil {
		a.err = outOfTime(t.id, err)
		return a
	}
	defer c.traffic.End()
	if c.traffic.Dialing() {
		a.err = noConnection(t.id)
		return a
	}
	t.connects = c.nc.Stats().Reconnects
	place, err := c.inbox.open(deadline)
	if err != nil {
		a.err = fmt.Errorf("calling %s: %w", t.id, err)
		return a
	}
	defer c.inbox.close(place)
	r := reception{c: c, t: *t, streaming: t.stream, before: c.nc.LastError(), began: time.Now()}
	if a.err = c.send(ctx, *t, place, method, params); a.err != nil {
		return a
	}
	a.result, a.err = r.receive(ctx, place)
	a.origin, a.refused = r.origin, r.denied
	if !r.ended { // the instance still runs it, or may
		c.cancel(*t, place.reply)
	}
	return a
}

// outgoing is a request while it is sent. The connection copies it, so it can be reused.
type outgoing struct {
	msg    nats.Msg
	values [8]string // of the headers
}

var outgoings = sync.Pool{New: func() any { return &outgoing{msg: nats.Msg{Header: nats.Header{}}} }}

// set sets a header that has one value.
func (o *outgoing) set(name, value string) {
	n := len(o.msg.Header)
	o.values[n] = value
	o.msg.Header[name] = o.values[n : n+1 : n+1]
}

// send sends the request of a call.
func (c *Client) send(ctx context.Context, t target, p *place, method string, params json.RawMessage) error {
	left := time.Until(p.deadline)
	if left < time.Millisecond {
		return rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "no time was left to call %s", t.id)
	}
	o := outgoings.Get().(*outgoing)
	defer outgoings.Put(o)
	clear(o.msg.Header)
	msg := &o.msg
	msg.Subject, msg.Reply = t.to(), p.reply
	msg.Data = jsonrpc.AppendRequest(msg.Data[:0], []byte(requestID), method, params)
	o.set(wire.HeaderTimeout, strconv.FormatInt(left.Milliseconds(), 10))
	o.set(wire.HeaderCallID, p.reply) // as unique as a name can be
	if t.stream || !t.known {
		o.set(wire.HeaderStream, "1")
	}
	if parent := wire.Traceparent(ctx); parent != "" {
		o.set(wire.HeaderTraceparent, parent)
	}
	if t.agent != "" {
		o.set(wire.HeaderAgent, t.agent)
	}
	if t.session != "" {
		o.set(wire.HeaderSession, t.session)
	}
	size, limit := int64(len(msg.Data)), c.nc.MaxPayload()-wire.Headroom
	var err error
	if size <= limit || limit <= 0 {
		err = c.nc.PublishMsg(msg)
	}
	if cap(msg.Data) > 64<<10 { // too large to keep
		msg.Data = nil
	}
	switch {
	case size > limit && limit > 0:
		return rpc.NewError(rpc.CodeTooLarge, rpc.Details{Ran: rpc.RanNo, Size: size, Limit: limit},
			"the request is %d bytes, over this server's limit of %d", size, limit)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrHeadersNotSupported) && !c.nc.IsConnected(): // the latter before the first connection
		return noConnection(t.id)
	case err != nil:
		return fmt.Errorf("calling %s: %w", t.id, err)
	}
	return nil
}

func noConnection(id string) *rpc.Error {
	return rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%s was not called: the connection to NATS is down", id)
}

// outOfTime is the error of a call that was not made when its context ended.
func outOfTime(id string, cause error) *rpc.Error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "no time was left to call %s", id)
	}
	return rpc.Errorf(rpc.CodeCancelled, rpc.RanNo, "the call to %s was cancelled before it was made", id)
}

// cancel informs the instance that the caller does not wait for the answer any longer.
func (c *Client) cancel(t target, callID string) {
	if c.traffic.Dialing() { // it could not be sent
		return
	}
	data, err := json.Marshal(map[string]string{"call_id": callID})
	if err == nil {
		err = c.nc.Publish(strings.TrimSuffix(t.subject, ".rpc")+".cancel", data)
	}
	if err != nil {
		c.opt.Logger.Debug("could not cancel", "extension", t.id, "error", err)
	}
}

// requestID is the JSON-RPC id of every request. Answers are identified by the token of the inbox.
const requestID = "1"

// reception is the answer of one call as it comes in.
type reception struct {
	c         *Client
	t         target
	origin    origin // of the error
	before    error  // the connection's last error when the request was sent
	began     time.Time
	denied    bool   // NATS denied the request
	looked    bool   // while it was new, NATS had not denied it
	streaming bool   // frames have come, or will: silence means something
	ended     bool   // nothing more will come
	chunks    int    // number
	text      []byte // of the chunks
}

// receive takes replies until the answer is whole.
func (r *reception) receive(ctx context.Context, p *place) (json.RawMessage, error) {
	for {
		select {
		case m := <-p.replies:
			switch {
			case m != nil:
				if result, done, err := r.take(m); done {
					return result, err
				}
			case !time.Now().Before(p.deadline):
				return nil, r.gaveUp(context.DeadlineExceeded)
			case r.c.inbox.closed.Load() && len(p.replies) == 0:
				r.ended = true // nothing can come or be sent any more
				return nil, r.closed()
			case r.isDenied():
				return nil, r.denial()
			case r.look():
			case !r.streaming || len(p.replies) > 0: // progress may have kept take busy
			case r.c.inbox.silence(p) < wire.SilenceLimit:
				r.silent()
			case r.isBehind(ctx, p):
			case r.c.wasAway(r.t.connects):
				return nil, r.lost()
			default:
				r.silent()
				return nil, rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s sent nothing for %s during the call; it may have stopped", r.t.id, wire.SilenceLimit)
			}
		case <-ctx.Done():
			return nil, r.gaveUp(ctx.Err())
		}
	}
}

// flushLimit limits how long a call waits for what the server has for a connection: a server closes one that is slower.
const flushLimit = 30 * time.Second

// isBehind waits until everything has arrived that the server had for this connection. It reports whether some of it was for the
// call, or the call's time is over. On a slow connection, keepalives arrive after the answers of other calls.
func (r *reception) isBehind(ctx context.Context, p *place) bool {
	if r.c.wasAway(r.t.connects) {
		return false
	}
	call, cancel := context.WithDeadline(ctx, p.deadline)
	defer cancel()
	flush, cancel := context.WithTimeout(call, flushLimit)
	defer cancel()
	if r.c.nc.FlushWithContext(flush) == nil {
		r.c.inbox.drained(flush)
	}
	return call.Err() != nil || len(p.replies) > 0 || r.c.inbox.silence(p) < wire.SilenceLimit
}

// isDenied reports whether NATS has denied the request since it was sent. The connection keeps its last error only; its traffic
// keeps others, unless the dialer is a foreign one.
func (r *reception) isDenied() bool {
	if r.c.traffic.Dialing() {
		return false
	}
	if r.c.traffic.DeniedSince(r.t.to(), r.began) {
		return true
	}
	err, subject := r.c.nc.LastError(), `Publish to "`+r.t.to()+`"`
	if r.c.traffic == nil && r.t.direct != "" { // the last error may be of another instance, which is denied in the same way
		subject = `Publish to "` + r.t.subject + `.`
	}
	return err != r.before && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), subject)
}

func (r *reception) gaveUp(cause error) error {
	if !errors.Is(cause, context.DeadlineExceeded) {
		return rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "the call to %s was cancelled", r.t.id)
	}
	if r.c.wasAway(r.t.connects) {
		return r.lost()
	}
	if !r.looked && !r.streaming && r.isDenied() { // later, a call may run, and another one may have been denied since
		return r.denial()
	}
	r.silent()
	return rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "%s did not answer in time", r.t.id)
}

// look notes that NATS has not denied the call. It returns false.
func (r *reception) look() bool {
	r.looked = true
	return false
}

// denial ends a call that NATS has denied.
func (r *reception) denial() error {
	if r.t.direct != "" { // other instances may be permitted, and the subject of all is
		return rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "NATS denies this user the instances of %s", r.t.id)
	}
	r.denied, r.ended = true, true
	return fmt.Errorf("%w: %w", rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "NATS does not allow this user to call %s (publish to %s)", r.t.id, r.t.to()), ErrDenied)
}

// lost is the error of a call if its answer may have been lost.
func (r *reception) lost() error {
	return rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "no answer of %s arrived in time: the connection to NATS was down meanwhile", r.t.id)
}

// closed is the error of a call if its connection was closed after it had been sent.
func (r *reception) closed() error {
	return fmt.Errorf("%w: %w", rpc.Errorf(rpc.CodeUnavailable, rpc.RanMaybe, "no answer of %s can arrive", r.t.id), nats.ErrConnectionClosed)
}

// silent reports that an instance may hang, to the registry and to the Client's own choice of instances, unless it was the
// connection that was away.
func (r *reception) silent() {
	if r.c.wasAway(r.t.connects) {
		return
	}
	r.t.guard.routes.silent(r.t.direct, time.Now())
	r.c.suspect(&r.t, "timeout")
}

// take handles one message of the answer.
func (r *reception) take(m *nats.Msg) (_ json.RawMessage, done bool, _ error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		r.ended, r.origin = true, byNATS
		return nil, true, rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "no instance of %s is subscribed", r.t.id)
	}
	if r.t.direct != "" {
		r.t.guard.routes.received(r.t.direct)
	}
	kind := m.Header.Get(wire.HeaderFrame)
	r.streaming = r.streaming || kind != ""
	switch kind {
	case "":
		r.ended = true
		result, err := r.result(m)
		return result, true, err
	case wire.FrameProgress:
		r.progress(m.Data)
	case wire.FrameChunk:
		if err := r.chunk(m); err != nil {
			return nil, true, err
		}
	case wire.FrameEnd:
		r.ended = true
		result, err := r.end(m)
		return result, true, err
	}
	return nil, false, nil
}

func (r *reception) progress(notification []byte) {
	if r.t.progress == nil {
		return
	}
	notification = validUTF8(notification)
	if env, err := jsonrpc.Scan(notification); err == nil && env.IsNotification() {
		r.t.progress(notification)
	}
}

// maxAnswer bounds an answer in chunks: what a child's line may be, and its envelope.
const maxAnswer = jsonrpc.DefaultMaxLine + 1<<20

func (r *reception) chunk(m *nats.Msg) error {
	r.chunks++
	if seq := m.Header.Get(wire.HeaderSeq); seq != strconv.Itoa(r.chunks) {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "a part of %s's answer was lost: chunk %s came as number %d", r.t.id, seq, r.chunks)
	}
	if r.text = append(r.text, m.Data...); len(r.text) > maxAnswer {
		return rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: int64(len(r.text)), Limit: maxAnswer},
			"%s's answer is over the limit of %d bytes", r.t.id, maxAnswer)
	}
	if m.Reply == "" {
		return nil
	}
	if !r.c.prefix.MayAcknowledge(r.t.subject, m.Reply) {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s requests the acknowledgement of a chunk on %.128q, which is neither its ack subject nor an inbox", r.t.id, m.Reply)
	}
	switch err := r.c.nc.Publish(m.Reply, nil); {
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		return r.lost()
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return r.closed()
	case err != nil:
		return fmt.Errorf("acknowledging a chunk of %s: %w", r.t.id, err)
	}
	return nil
}

func (r *reception) end(m *nats.Msg) (json.RawMessage, error) {
	var end struct {
		Length int `json:"length"`
	}
	if err := json.Unmarshal(m.Data, &end); err != nil || end.Length != len(r.text) {
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "a part of %s's answer was lost: %d bytes came, of %s", r.t.id, len(r.text), m.Data)
	}
	return r.result(&nats.Msg{Data: r.text})
}

// validUTF8 replaces what is not UTF-8: only bridges check that, and one such byte ends the session of some MCP clients.
func validUTF8(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	return bytes.ToValidUTF8(text, []byte("\uFFFD"))
}

// result reads the answer. Only errors with the headers of micro's are the mesh's; any other is the extension's own,
// whatever its data is.
func (r *reception) result(m *nats.Msg) (json.RawMessage, error) {
	reply, err := jsonrpc.ParseReply(validUTF8(m.Data))
	if err != nil {
		if text := m.Header.Get(micro.ErrorHeader); text != "" { // a micro service with errors that are not JSON-RPC
			r.origin = byExtension
			return nil, &rpc.Error{Code: rpc.CodeInternal, Message: text}
		}
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered with something that is not a JSON-RPC response: %v", r.t.id, err)
	}
	result, err := reply.Result()
	if id := reply.ID(); string(id) != requestID && !(err != nil && (id == nil || string(id) == "null")) {
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered with the id %.64q, and the request's is %s", r.t.id, id, requestID)
	}
	if err != nil {
		r.origin = byExtension
		if e := rpc.AsError(err); m.Header.Get(micro.ErrorCodeHeader) != "" && e.Details().Kind != "" {
			r.origin = byMesh
		}
	}
	return result, err
}
