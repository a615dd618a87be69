package door

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// maxMessage limits a message of a client.
const maxMessage = 64 << 20

// After the end of the input, calls in flight have endGrace to complete, so that a request from a shell pipe is answered;
// then they are cancelled. All in all the Door stops within a second.
const (
	endGrace = 400 * time.Millisecond
	endMost  = 900 * time.Millisecond
)

var errClosed = errors.New("the client has closed the connection")

// ServeStdio serves one client that writes requests to r, one per line, and reads the answers from w. When r or ctx ends, it
// returns nil within a second. If a Read of r or a Write to w is still blocked then, its goroutine ends with it.
func (d *Door) ServeStdio(ctx context.Context, r io.Reader, w io.Writer) error {
	s := &stdioServer{
		client: d.newClient(d.view, ""), out: newWriter(w), next: make(chan *request), ending: make(chan struct{}),
	}
	s.client.session = rand.Text()
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer s.cancel(errClosed)
	defer s.client.notifyClient(s.out.notify)()
	ended := make(chan error, 1)
	go func() { ended <- s.read(r) }() // ends with r
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	case <-s.out.failed:
		err = fmt.Errorf("writing to the client: %w", s.out.error())
	}
	s.end()
	return err
}

// stdioServer is the state of ServeStdio.
type stdioServer struct {
	client *client
	out    *writer
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc
	idle   atomic.Int32
	next   chan *request // for a handler that has nothing to do
	ending chan struct{} // closed when handlers without a request end

	mu       sync.Mutex // held to start a handler, and to close ending: no handler starts after that
	handlers sync.WaitGroup
}

// maxIdleHandlers limits the handlers that wait for another request. A new one costs more: its stack must grow.
const maxIdleHandlers = 64

// end waits for the calls in flight, cancels them, and waits until the answers are written.
func (s *stdioServer) end() {
	deadline := time.After(endMost)
	s.mu.Lock()
	close(s.ending)
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the handlers, which end soon after cancel, unless a Write is blocked
		s.handlers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(endGrace):
	case <-s.out.failed:
	}
	s.cancel(errClosed)
	select {
	case <-done:
	case <-deadline:
		return
	}
	select {
	case <-s.out.idle():
	case <-deadline:
	}
}

// read handles the messages until r ends.
func (s *stdioServer) read(r io.Reader) error {
	lines := jsonrpc.NewLineReader(r, maxMessage)
	for {
		line, err := lines.Next()
		long, isLong := errors.AsType[*jsonrpc.LongLineError](err)
		switch {
		case isLong:
			s.out.reply(jsonrpc.AppendError(nil, long.ID, &rpc.Error{Code: rpc.CodeInvalidRequest, Message: fmt.Sprintf("the message is longer than %d MiB", maxMessage>>20)}))
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("reading from the client: %w", err)
		case lines.Cut(): // complete or not
			text := bytes.Clone(line)
			if env, err := jsonrpc.Scan(text); err == nil && utf8.Valid(text) {
				s.message(&env)
			}
		default:
			s.line(line)
		}
	}
}

// line handles one line.
func (s *stdioServer) line(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	text := bytes.Clone(line) // calls outlive the line
	env, err := jsonrpc.Scan(text)
	switch {
	case !utf8.Valid(text):
		s.refuse(rpc.CodeParse, "the message is not UTF-8")
	case text[0] == '[':
		s.refuse(rpc.CodeInvalidRequest, "batches are not supported: send one message per line")
	case err != nil:
		s.refuse(rpc.CodeParse, "the message is not JSON: "+err.Error())
	default:
		s.message(&env)
	}
}

// refuse answers a message whose id is unknown.
func (s *stdioServer) refuse(code rpc.Code, text string) {
	s.out.reply(jsonrpc.AppendError(nil, nil, &rpc.Error{Code: code, Message: text}))
}

// message handles one JSON object.
func (s *stdioServer) message(env *jsonrpc.Envelope) {
	switch {
	case env.IsNotification():
		s.client.notification(env.MethodName(), env.Params)
		return
	case env.IsResponse(): // to a request of the server, which sends none
		return
	}
	if e := checkRequest(env); e != nil {
		s.out.reply(jsonrpc.AppendError(nil, validID(env.ID), e))
		return
	}
	q := &request{id: env.ID, method: env.MethodName(), raw: env.Params, notify: s.out.notify}
	if e := q.parse(); e != nil {
		s.out.reply(jsonrpc.AppendError(nil, q.id, e))
		return
	}
	s.setName(q)
	if s.client.isQuick(q) {
		s.out.reply(s.client.answer(s.ctx, q))
		return
	}
	_ = s.client.enter(s.ctx, q) // before the next message, which may cancel it; answer returns the error
	select {
	case s.next <- q:
	default:
		s.start(q)
	}
}

// setName remembers the name of a client of the modern era.
func (s *stdioServer) setName(q *request) {
	if q.era != mcp.EraModern || len(q.params.Meta.ClientInfo) == 0 {
		return
	}
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if s.client.name == "" {
		s.client.name = mcp.ClientName(q.params.Meta.ClientInfo)
	}
}

// start starts a handler with its first request. When the server is ending, the request is not answered.
func (s *stdioServer) start(q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.ending) {
		q.running.leave()
	} else {
		s.handlers.Go(func() { s.handle(q) }) // owned by end; ends with its request, after the cancellation of ctx at the latest, or with a Write that is blocked
	}
}

// handle handles a request, and then others that come while it has nothing to do.
func (s *stdioServer) handle(q *request) {
	for q != nil {
		if message := s.client.answer(s.ctx, q); message != nil {
			s.out.write(message)
		}
		q = s.await()
	}
}

// await waits for another request. It returns nil if enough handlers wait already, and when the server ends.
func (s *stdioServer) await() (q *request) {
	defer s.idle.Add(-1)
	if s.idle.Add(1) > maxIdleHandlers {
		return nil
	}
	select {
	case q = <-s.next:
	case <-s.ending:
	}
	return q
}

// checkRequest checks a message that is neither a notification nor a response.
func checkRequest(env *jsonrpc.Envelope) *rpc.Error {
	switch {
	case env.Method == nil:
		return &rpc.Error{Code: rpc.CodeInvalidRequest, Message: `the message has no "method"`}
	case !jsonrpc.ValidID(env.ID):
		return &rpc.Error{Code: rpc.CodeInvalidRequest, Message: `the request needs an "id": a number, or a string of at most 256 bytes`}
	case env.Method[0] != '"':
		return &rpc.Error{Code: rpc.CodeInvalidRequest, Message: `"method" must be a string`}
	}
	return nil
}

// validID returns an id that can be sent back, or nil.
func validID(id []byte) []byte {
	if jsonrpc.ValidID(id) {
		return id
	}
	return nil
}
