package mesh

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// freshness is how old the catalog's word may be for a call to be refused on it.
const freshness = 10 * time.Second

// throughEvery is how often a call is let through all the same: the catalog has a word, never a veto.
const throughEvery = time.Second

// guard is what a Client knows of one extension's troubles: its own breaker, and when it last let a call
// through against the catalog's word and last complained.
type guard struct {
	id      string
	breaker *breaker.Breaker
	routes  routes

	mu        sync.Mutex
	seen      uint64 // the state's revision that the breaker was last compared with
	through   time.Time
	suspected time.Time
}

// maySuspect reports whether a complaint is due, and takes it as made.
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
	g := &guard{id: id}
	g.breaker = breaker.New("ext:nats:"+id, breaker.Settings{OnChange: func(s heartbeat.BreakerState, _ time.Time) {
		c.reportBreaker(id, s)
	}})
	actual, _ := c.guards.LoadOrStore(id, g)
	return actual.(*guard)
}

// reportBreaker tells the registry, which probes: a caller's word alone shows nothing to the fleet.
func (c *Client) reportBreaker(id string, s heartbeat.BreakerState) {
	data, err := json.Marshal(wire.BreakerReport{ID: id, State: string(s), Reporter: c.nc.Opts.Name})
	if err == nil {
		err = c.nc.Publish(c.prefix.Breaker(id), data)
	}
	if err != nil {
		c.opt.Logger.Debug("could not report a breaker", "extension", id, "error", err)
	}
}

// enter asks whether a call may be made now: by this client's own breaker, then by the catalog's word that
// the fleet's is open, while that is fresh.
func (c *Client) enter(g *guard, now time.Time) (breaker.Token, *rpc.Error) {
	if c.opt.Catalog != nil {
		if e, ok := c.opt.Catalog.Get(g.id); ok {
			if err := c.heed(g, e, now); err != nil {
				return breaker.Token{}, err
			}
		}
	}
	token, err := g.breaker.Acquire()
	if err == nil {
		return token, nil
	}
	d := rpc.Details{Ran: rpc.RanNo, RetryAfterMS: breaker.RetryAfter(err).Milliseconds()}
	return token, rpc.NewError(rpc.CodeBreakerOpen, d, "%s did not answer in time several times in a row: %v", g.id, err)
}

// heed takes the catalog's word into account: an extension that has become ready is worth a probe at once, and
// one whose breaker the registry has seen open is not called until its time has come.
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
	return rpc.NewError(rpc.CodeBreakerOpen, rpc.Details{Ran: rpc.RanNo, RetryAfterMS: b.RetryAt.Sub(now).Milliseconds(),
		State: string(e.State.State), Reason: e.State.Reason}, "the registry finds that %s does not answer (%s)", g.id, e.State.Reason)
}
