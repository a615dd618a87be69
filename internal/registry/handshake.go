package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Handshakes are bounded: a slow extension must not keep others from being shown.
const (
	maxHandshakes    = 64
	handshakeTimeout = 10 * time.Second
)

// retryNoResponders are the pauses before asking again whom nobody was found to answer for: a subscription takes
// a moment to be known in a whole cluster.
var retryNoResponders = [...]time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 160 * time.Millisecond}

// considerHandshake asks an instance for its tools if the leader has to: it is ready (or it is a service that
// names no instance), and nobody like it has answered. It is called on every announce and beat, which are also
// the pace of retries.
func (l *loop) considerHandshake(x *extension, instance string) {
	if !l.leading() {
		return
	}
	l.restore(x.id)
	a := x.said[instance]
	if a == nil { // a service may beat under a name that it did not announce
		if a, instance = x.said[""], ""; a == nil {
			return
		}
	}
	if i, ok := l.mon.Instance(x.id, instance); instance != "" && (!ok || i.State != heartbeat.Ready) {
		return
	}
	key := a.shakeKey()
	s := x.shakes[key]
	if s == nil {
		s = &shake{}
		x.shakes[key] = s
	}
	if s.done || s.pending {
		return
	}
	s.pending = true
	l.handshakes.start(func() {
		params := json.RawMessage(fmt.Sprintf(`{"agent_version":%q,"extension_id":%q}`, l.cfg.Version, x.id))
		subject := a.rpcSubject()
		l.wg.Go(func() { // owned by the loop; ends with handshakeTimeout at the latest
			answer, err := request(l.ctx, l.nc, subject, "initialize", params, handshakeTimeout)
			var h mesh.Handshake
			if err == nil {
				h, err = mesh.ParseHandshake(answer)
			}
			l.report(func(l *loop) {
				l.handshakes.finish()
				l.shaken(x, s, h, len(answer), err)
			})
		})
	})
}

// shaken takes in the end of a handshake.
func (l *loop) shaken(x *extension, s *shake, h mesh.Handshake, size int, err error) {
	s.pending = false
	if l.exts[x.id] != x {
		return // forgotten meanwhile
	}
	if err == nil && l.size+size > maxSize {
		err = fmt.Errorf("the registry keeps %d bytes already", l.size)
	}
	if err != nil {
		if s.err != err.Error() {
			level := slog.LevelDebug // nobody is there yet, says the state
			if how, _ := l.mon.Extension(x.id); how.State == heartbeat.Ready {
				level = slog.LevelWarn
			}
			l.log.Log(l.ctx, level, "handshake failed", "extension", x.id, "error", err)
			s.err = err.Error()
			l.pub.mark(specKey(x.id), false)
		}
		return
	}
	s.done, s.err, s.at, s.size = true, "", time.Now(), size
	s.tools, s.hooks, s.notes = h.Tools, h.Hooks, h.Problems
	l.keep(x, size)
	l.reconsider[x.id] = true
}

// limiter runs at most max pieces of work at once and keeps the others in order.
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

// request asks one JSON-RPC question and returns the raw result. A missing responder is asked again a few times.
func request(ctx context.Context, nc *nats.Conn, subject, method string, params json.RawMessage, timeout time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"`)
	if len(params) > 0 {
		body = append(append(body, `,"params":`...), params...)
	}
	body = append(body, '}')
	var m *nats.Msg
	var err error
	for try := 0; ; try++ {
		m, err = nc.RequestWithContext(ctx, subject, body)
		if !errors.Is(err, nats.ErrNoResponders) || try == len(retryNoResponders) || !sleep(ctx, retryNoResponders[try]) {
			break
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer on %s within %v: %w", subject, timeout, err)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", subject, err)
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *rpc.Error      `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, fmt.Errorf("the answer on %s is not JSON-RPC: %w", subject, err)
	}
	if answer.Error != nil {
		return nil, fmt.Errorf("the answer on %s is an error: %w", subject, answer.Error)
	}
	return answer.Result, nil
}
