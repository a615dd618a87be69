package mesh

import (
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// freshness is the maximal age of the catalog at which a call is refused because of it.
const freshness = 10 * time.Second

// throughEvery is how often a call is allowed although the catalog shows an open breaker: the catalog may be wrong.
const throughEvery = time.Second

// longestDelay limits the wait in the error for a caller: no breaker is open for longer, but the bridge's clock may be ahead.
const longestDelay = 2 * time.Minute

// guard is the state of one extension's failures at a Client: its breaker, the last call that was allowed although the
// catalog shows an open breaker, and the last suspicion that was reported.
type guard struct {
	id      string
	breaker *breaker.Breaker
	routes  routes

	mu        sync.Mutex
	seen      uint64 // the state's revision that the breaker was last compared with
	through   time.Time
	suspected time.Time
}

// maySuspect reports whether a report is due, and counts it as sent.
func (g *guard) maySuspect(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.suspected) < suspectEvery {
		return false
	}
	g.suspected = now
	return true
}

// guardOf returns the guard of an extension.
func (c *Client) guardOf(id string) *guard {
	if g, ok := c.guards.Load(id); ok {
		return g.(*guard)
	}
	g := &guard{id: id, breaker: breaker.New("ext:nats:"+id, breaker.Settings{})}
	actual, _ := c.guards.LoadOrStore(id, g)
	return actual.(*guard)
}

// enter decides whether a call may be made now: by this client's own breaker, and by an open breaker in the catalog, if the
// catalog is fresh.
func (c *Client) enter(g *guard, now time.Time) (breaker.Token, *rpc.Error) {
	if e, ok := c.shown.get(g.id); ok {
		if err := c.heed(g, e, now); err != nil {
			return breaker.Token{}, err
		}
	}
	token, err := g.breaker.Acquire()
	if err == nil {
		return token, nil
	}
	d := rpc.Details{Ran: rpc.RanNo, RetryAfterMS: breaker.RetryAfter(err).Milliseconds()}
	return token, rpc.NewError(rpc.CodeBreakerOpen, d, "%s did not answer in time several times in a row: %v", g.id, err)
}

// heed applies what the catalog shows: an extension that has become ready may be called immediately, and one with an open
// breaker is not called until its retry time.
func (c *Client) heed(g *guard, e Extension, now time.Time) *rpc.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.StateRevision != g.seen {
		g.seen = e.StateRevision
		if e.State.State == heartbeat.Ready {
			g.breaker.HalfOpen()
		}
	}
	b := e.State.Breaker
	if b == nil || b.State != heartbeat.BreakerOpen || b.RetryAt == nil || !now.Before(*b.RetryAt) || c.opt.Catalog.Age() > freshness {
		return nil
	}
	if now.Sub(g.through) >= throughEvery {
		g.through = now
		return nil
	}
	return rpc.NewError(rpc.CodeBreakerOpen, rpc.Details{Ran: rpc.RanNo, RetryAfterMS: min(b.RetryAt.Sub(now), longestDelay).Milliseconds(),
		State: string(e.State.State), Reason: e.State.Reason}, "the breaker of %s is open in the catalog: it does not answer (%s)", g.id, e.State.Reason)
}
