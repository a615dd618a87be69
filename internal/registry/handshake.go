package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Handshakes are limited, so that a slow extension does not delay the others.
const (
	maxHandshakes    = 64
	handshakeTimeout = 10 * time.Second
)

// handshake sends initialize to an instance. Most answers fit into one message. The others are requested again in chunks,
// one at a time, which bounds their memory.
func (l *loop) handshake(h fleet.Handshake) {
	q := request{nc: l.nc, subject: h.Subject, method: "initialize", acks: func(reply string) bool { return l.cfg.Prefix.MayAcknowledge(h.RPC, reply) },
		params: json.RawMessage(fmt.Sprintf(`{"agent_version":%q,"extension_id":%q}`, l.cfg.Version, h.ID))}
	limit := l.limits().Spec
	l.handshakes.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with handshakeTimeout at the latest
			answer, err := q.send(l.ctx, handshakeTimeout)
			offered := fleet.ParseOffer(answer, err, limit)
			l.report(func(l *loop) {
				l.handshakes.finish()
				if h.Chunked && errors.Is(err, rpc.CodeTooLarge) {
					l.chunkedHandshake(h, q, limit)
					return
				}
				l.fleet.HandshakeDone(h, offered, time.Now())
			})
		})
	})
}

func (l *loop) chunkedHandshake(h fleet.Handshake, q request, limit int) {
	l.large.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with largeTimeout at the latest
			answer, err := q.sendChunked(l.ctx, largeTimeout)
			offered := fleet.ParseOffer(answer, err, limit)
			l.report(func(l *loop) {
				l.large.finish()
				l.fleet.HandshakeDone(h, offered, time.Now())
			})
		})
	})
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
