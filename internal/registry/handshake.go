package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Handshakes are limited, so that a slow extension does not delay the others.
const (
	maxHandshakes    = 64
	handshakeTimeout = 10 * time.Second
)

// considerHandshake starts a handshake with an instance if this replica leads, the instance is ready (or belongs to a
// service without instances), and no equal instance has completed one. It is called for every announcement and
// heartbeat, which also sets the pace of retries.
func (l *loop) considerHandshake(x *extension, instance string) {
	if !l.leading() {
		return
	}
	l.restore(x.id)
	a := x.announcements[instance]
	if a == nil { // a service may send heartbeats under a name that it did not announce
		if a, instance = x.announcements[""], ""; a == nil {
			return
		}
	}
	if i, ok := l.mon.Instance(x.id, instance); instance != "" && (!ok || i.State != heartbeat.Ready) {
		return
	}
	key := a.handshakeKey()
	s := x.handshakes[key]
	if s == nil {
		s = &handshake{}
		x.handshakes[key] = s
	}
	if s.done || s.pending {
		return
	}
	s.pending = true
	l.startHandshake(x, s, a)
}

// startHandshake sends initialize to the instance of a. Most answers fit into one message. The others are requested
// again in chunks, one at a time, which bounds their memory.
func (l *loop) startHandshake(x *extension, s *handshake, a *announced) {
	q := request{nc: l.nc, subject: a.rpcSubject(), method: "initialize", acks: func(reply string) bool { return l.cfg.Prefix.MayAcknowledge(a.subject(), reply) },
		params: json.RawMessage(fmt.Sprintf(`{"agent_version":%q,"extension_id":%q}`, l.cfg.Version, x.id))}
	chunked, limit := a.has(wire.FeatureStream), l.specLimit()
	l.handshakes.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with handshakeTimeout at the latest
			answer, err := q.send(l.ctx, handshakeTimeout)
			offered := parseOffer(answer, err, limit)
			l.report(func(l *loop) {
				l.handshakes.finish()
				if chunked && errors.Is(err, rpc.CodeTooLarge) {
					l.startChunkedHandshake(x, s, q, limit)
					return
				}
				l.handshakeDone(x, s, offered)
			})
		})
	})
}

func (l *loop) startChunkedHandshake(x *extension, s *handshake, q request, limit int) {
	l.large.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with largeTimeout at the latest
			answer, err := q.sendChunked(l.ctx, largeTimeout)
			offered := parseOffer(answer, err, limit)
			l.report(func(l *loop) {
				l.large.finish()
				l.handshakeDone(x, s, offered)
			})
		})
	})
}

// offer is the result of initialize, cut to what the catalog can show.
type offer struct {
	wire.Handshake
	cuts cuts
	size int
	err  error
}

func parseOffer(answer json.RawMessage, err error, limit int) (o offer) {
	if err != nil {
		return offer{err: err}
	}
	if o.Handshake, o.err = wire.ParseHandshake(answer); o.err != nil {
		return o
	}
	if over := toolsSize(o.Tools) - limit; over > 0 {
		o.Tools = slices.Clone(o.cuts.cut(o.Tools, over)) // the original array would keep the removed tools
	}
	o.size = toolsSize(o.Tools)
	for _, h := range o.Hooks {
		o.size += len(h)
	}
	return o
}

// handshakeDone handles the end of a handshake.
func (l *loop) handshakeDone(x *extension, s *handshake, o offer) {
	s.pending = false
	if l.exts[x.id] != x {
		return // removed meanwhile
	}
	err := o.err
	if err == nil {
		err = l.makeRoom(o.size, time.Now())
	}
	if kept := x.offered(); err == nil && kept > 0 && kept+o.size > maxOffers*l.specLimit() {
		err = fmt.Errorf("the registry has already stored %d bytes of tools of other versions of this extension", kept)
	}
	if l.exts[x.id] != x {
		return // evicted
	}
	if err != nil {
		if s.err != err.Error() {
			level := slog.LevelDebug // the state shows the problem already
			if health, _ := l.mon.Extension(x.id); health.State == heartbeat.Ready {
				level = slog.LevelWarn
			}
			l.log.Log(l.ctx, level, "handshake failed", "extension", x.id, "error", err)
			s.err = err.Error()
			l.pub.mark(specKey(x.id), false)
		}
		return
	}
	s.done, s.err, s.at, s.size, s.cuts = true, "", time.Now(), o.size, o.cuts
	s.tools, s.hooks, s.notes = o.Tools, o.Hooks, o.Problems
	l.account(x, o.size)
	l.reconsider[x.id] = true
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
