package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// workers runs what takes time outside of the loop, and passes the results to the loop.
type workers struct {
	*Registry
	ctx     context.Context // stored because results start further work
	wg      sync.WaitGroup
	reports chan func(*loop)
	stopped chan struct{} // closed when reports are no longer read

	handshakes, large, pings, probing, unlimited limiter
}

func newWorkers(r *Registry) workers {
	return workers{Registry: r, reports: make(chan func(*loop), 64), stopped: make(chan struct{}), handshakes: limiter{max: maxHandshakes},
		large: limiter{max: maxLargeHandshakes}, pings: limiter{max: maxBridgePing}, probing: limiter{max: maxProbes}, unlimited: limiter{max: math.MaxInt}}
}

// The limits of concurrent work, so that a slow extension does not delay the others.
const (
	maxHandshakes    = 64
	handshakeTimeout = 10 * time.Second
	pingTimeout      = time.Second // of a bridge
	maxBridgePing    = 256
	maxProbes        = 64
	probeTimeout     = time.Second
	probeRetry       = 50 * time.Millisecond  // after no responders: three attempts within 100 ms
	probeNote        = 100 * time.Millisecond // unanswered for that long, the catalog shows it
)

// report runs f in the loop, or drops it if the loop has ended.
func (w *workers) report(f func(*loop)) {
	select {
	case w.reports <- f:
	case <-w.stopped:
	}
}

// do runs work when q allows it, and then what work returns in the loop.
func (w *workers) do(q *limiter, work func(ctx context.Context) func(*loop)) {
	q.start(func() {
		w.wg.Go(func() { // owned by the loop, which waits; ends with work's timeout
			done := work(w.ctx)
			w.report(func(l *loop) {
				q.finish()
				done(l)
			})
		})
	})
}

// handshakeParams are the params of initialize: the native members, and MCP's.
func handshakeParams(version, id string) json.RawMessage {
	return fmt.Appendf(nil, `{"agent_version":%q,"extension_id":%q,"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"extmesh","version":%q}}`,
		version, id, mcp.LatestLegacy, version)
}

// handshake sends initialize to an instance. Most answers fit into one message. The others are requested again in chunks,
// one at a time, which bounds their memory.
func (w *workers) handshake(h fleet.Handshake, limit int) {
	q := request{nc: w.nc, subject: h.Subject, method: "initialize", acks: func(reply string) bool { return w.cfg.Prefix.MayAcknowledge(h.RPC, reply) },
		params: handshakeParams(w.cfg.Version, h.ID)}
	w.do(&w.handshakes, func(ctx context.Context) func(*loop) {
		answer, err := q.send(ctx, handshakeTimeout)
		offered := fleet.ParseOffer(answer, err, limit)
		return func(l *loop) {
			if !h.Chunked || !errors.Is(err, rpc.CodeTooLarge) {
				l.fleet.HandshakeDone(h, offered, time.Now())
				return
			}
			w.do(&w.large, func(ctx context.Context) func(*loop) {
				answer, err := q.sendChunked(ctx, largeTimeout)
				offered := fleet.ParseOffer(answer, err, limit)
				return func(l *loop) { l.fleet.HandshakeDone(h, offered, time.Now()) }
			})
		}
	})
}

// askBridge sends a request without params to a bridge, and passes the result to the loop.
func (w *workers) askBridge(name, method string, done func(l *loop, answer json.RawMessage, err error)) {
	q := request{nc: w.nc, subject: w.cfg.Prefix.Control(name), method: method}
	w.do(&w.pings, func(ctx context.Context) func(*loop) {
		answer, err := q.send(ctx, pingTimeout)
		return func(l *loop) { done(l, answer, err) }
	})
}

// probe pings an instance.
func (w *workers) probe(p fleet.Ping) {
	w.do(&w.probing, func(ctx context.Context) func(*loop) {
		asking, answered := context.WithCancel(ctx)
		w.wg.Go(func() { // owned by the loop; ends with the answer
			if pause.For(asking, probeNote) {
				w.report(func(l *loop) { l.fleet.Unanswered(p, time.Now()) })
			}
		})
		reason, err := ping(ctx, w.nc, p.Subject, p.Tries)
		answered()
		return func(l *loop) { l.fleet.Probed(p, reason, err, time.Now()) }
	})
}

// errNotSent means that a request did not reach the server, so the instance's state is still unknown.
var errNotSent = errors.New("the ping was not sent")

// ping pings a subject. reason is "" if there was an answer; with err the result is unknown.
func ping(ctx context.Context, nc *nats.Conn, subject string, tries int) (reason string, err error) {
	for try := range tries {
		if try > 0 && !pause.For(ctx, probeRetry) {
			return "", context.Cause(ctx)
		}
		reason, err = pingOnce(ctx, nc, subject)
		if reason == "" || err != nil {
			return reason, err
		}
	}
	return reason, nil
}

func pingOnce(ctx context.Context, nc *nats.Conn, subject string) (reason string, err error) {
	pinging, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m, err := natsconn.Request(pinging, nc, subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "no responders", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.NotAnswering, nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNotSent, err)
	}
	return reasonOf(m), nil
}

// reasonOf reads the answer to a ping. Any answer counts, even an error, except an error with which a bridge reports
// that the instance is not there.
func reasonOf(m *nats.Msg) string {
	code, err := strconv.Atoi(m.Header.Get("Nats-Service-Error-Code"))
	if err != nil {
		return ""
	}
	switch rpc.Code(code) {
	case rpc.CodeTimeout:
		return fleet.NotAnswering
	case rpc.CodeExited, rpc.CodeUnavailable, rpc.CodeBreakerOpen:
		return rpc.Code(code).Kind()
	}
	return ""
}

func pingResult(answer json.RawMessage, err error) fleet.PingResult {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fleet.PingResult{Outcome: fleet.NoResponders}
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.PingResult{Outcome: fleet.TimedOut}
	case err == nil, errors.As(err, new(*rpc.Error)):
		return fleet.PingResult{Outcome: fleet.Answered, Answer: answer}
	}
	return fleet.PingResult{}
}

// limiter runs at most max tasks at once and queues the others in order.
type limiter struct {
	max, running int
	queue        []func()
}

func (q *limiter) start(f func()) {
	if q.running >= q.max {
		q.queue = append(q.queue, f)
		return
	}
	q.running++
	f()
}

func (q *limiter) finish() {
	q.running--
	if len(q.queue) > 0 {
		f := q.queue[0]
		q.queue = q.queue[1:]
		q.running++
		f()
	}
}

// count is the number of tasks that run or are queued.
func (q *limiter) count() int { return q.running + len(q.queue) }
