package bridge

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The bounds of the subscriptions of one instance.
const (
	maxSubscriptions    = 1000
	subscriptionLease   = 90 * time.Second
	subscriptionTimeout = 10 * time.Second // of a request to the server
)

// subscriptions are the resources of an MCP server of which callers want updates, by URI. A caller that still wants them subscribes
// again within the lease; there are no callers to count, and one that has crashed leaves nothing behind. The server gets one subscription for all callers. The next run of the server is subscribed again.
type subscriptions struct {
	workload *workload
	publish  func(notification []byte) error
	began    time.Time

	mu     sync.Mutex
	leases map[string]lease
	sweep  *time.Timer // nil while there are none
	to     jsonrpc.Starter
}

// lease is how long callers want the updates of a resource, and whether the server has accepted the subscription.
type lease struct {
	until    time.Time
	accepted bool
	pending  int  // requests of callers that the server has not answered
	mayHave  bool // one of those that have failed may have reached the server
}

// The outcomes of renew.
const (
	subscriptionNew = iota
	subscriptionHeld
	subscriptionRefused // there are too many
)

// renew extends a subscription, or adds it.
func (s *subscriptions) renew(uri string) (outcome int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, known := s.leases[uri]
	switch {
	case l.accepted:
		outcome = subscriptionHeld
	case known: // the server gets the request of each caller until it has accepted one
	case len(s.leases) == maxSubscriptions:
		return subscriptionRefused
	case s.leases == nil:
		s.leases = map[string]lease{}
	}
	if outcome == subscriptionNew {
		l.pending++
	}
	l.until = time.Now().Add(subscriptionLease)
	s.leases[uri] = l
	if s.sweep == nil {
		s.sweep = time.AfterFunc(subscriptionLease, s.expire) // ends after the last subscription
	}
	return outcome
}

// isRecent reports whether a new subscription may be the renewal of one at an earlier process of the bridge.
func (s *subscriptions) isRecent() bool {
	return time.Since(s.began) < subscriptionLease
}

// answered notes the answer to a caller's request. A subscription that the server has not accepted is removed when no request for
// it is under way; if the server may have got one all the same, it is ended there, too.
func (s *subscriptions) answered(uri string, accepted, mayRun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, known := s.leases[uri]
	if !known {
		return
	}
	l.pending = max(0, l.pending-1)
	l.accepted, l.mayHave = l.accepted || accepted, l.mayHave || mayRun
	s.leases[uri] = l
	if l.accepted || l.pending > 0 {
		return
	}
	delete(s.leases, uri)
	if l.mayHave && s.to != nil {
		s.unsubscribe(uri)
	}
}

// drop removes a subscription that a restarted server has refused.
func (s *subscriptions) drop(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, uri)
}

// unsubscribe ends a subscription at the server. The caller holds mu, so that a new subscription comes after it.
func (s *subscriptions) unsubscribe(uri string) {
	s.to.Start(&jsonrpc.Exchange{Method: "resources/unsubscribe", Params: uriParams(uri), Deadline: time.Now().Add(subscriptionTimeout), Sink: ignored{}})
}

// expire ends the subscriptions that were not renewed in time.
func (s *subscriptions) expire() {
	s.mu.Lock()
	now, next := time.Now(), time.Time{}
	var gone []string
	for uri, l := range s.leases {
		switch {
		case !l.until.After(now):
			delete(s.leases, uri)
			gone = append(gone, uri)
		case next.IsZero() || l.until.Before(next):
			next = l.until
		}
	}
	if s.sweep = nil; !next.IsZero() {
		s.sweep = time.AfterFunc(next.Sub(now), s.expire)
	}
	for _, uri := range gone {
		s.unsubscribe(uri)
	}
	s.mu.Unlock()
}

// ignored is for answers of which nothing depends.
type ignored struct{}

// Deliver implements jsonrpc.Sink.
func (ignored) Deliver(*jsonrpc.Exchange, jsonrpc.Reply) {}

// resume subscribes to everything again, at a server that was started, has lost its session, or may have been replaced. It also
// publishes that each resource may have changed.
func (s *subscriptions) resume(to jsonrpc.Starter) {
	s.mu.Lock()
	s.to = to
	uris := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	deadline := time.Now().Add(subscriptionTimeout)
	for _, uri := range uris {
		to.Start(&jsonrpc.Exchange{Method: "resources/subscribe", Params: uriParams(uri), Deadline: deadline, Sink: &subscribing{all: s, uri: uri}})
	}
}

func (s *subscriptions) publishUpdated(uri string) {
	_ = s.publish(jsonrpc.AppendRequest(nil, nil, "notifications/resources/updated", uriParams(uri))) // not while NATS is away
}

func uriParams(uri string) []byte {
	text, _ := json.Marshal(map[string]string{"uri": uri}) // a string always encodes
	return text
}

// subscribing receives the server's answer to a subscription.
type subscribing struct {
	all *subscriptions
	uri string
	to  jsonrpc.Sink // nil: no caller waits for it
}

// Deliver implements jsonrpc.Sink.
func (s *subscribing) Deliver(x *jsonrpc.Exchange, r jsonrpc.Reply) {
	_, err := r.Result()
	switch {
	case s.to != nil:
		s.all.answered(s.uri, err == nil, err != nil && !isOwnError(err) && rpc.AsError(err).Details().Ran != rpc.RanNo)
	case err != nil && !s.all.workload.hasEnded(err): // the next child is subscribed again
		s.all.drop(s.uri) // callers renew what they want, which subscribes again
	}
	if s.to == nil || err == nil && s.all.isRecent() { // it may have changed while the server, or the bridge, was away
		s.all.publishUpdated(s.uri)
	}
	if s.to != nil {
		s.to.Deliver(x, r)
	}
}

// subscribe handles resources/subscribe {uri}, which is also the renewal.
func (f *forwarder) subscribe(x *jsonrpc.Exchange, params []byte) {
	var p struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(params, &p) != nil || p.URI == "" || len(p.URI) > maxListingKey {
		x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "params.uri must be the URI of a resource, of at most %d bytes", maxListingKey)})
		return
	}
	switch f.updates.renew(p.URI) {
	case subscriptionHeld:
		x.Sink.Deliver(x, jsonrpc.NewReply([]byte("{}"), nil))
	case subscriptionRefused:
		x.Sink.Deliver(x, jsonrpc.Reply{Err: rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: maxSubscriptions},
			"%d resources are subscribed to, which is the limit", maxSubscriptions)})
	default:
		x.Sink = &subscribing{f.updates, p.URI, x.Sink}
		f.start(x, "resources/subscribe", uriParams(p.URI))
	}
}

// sendsUpdates reports whether a server has declared that it sends updates of resources.
func (hs *handshake) sendsUpdates() bool {
	var r struct {
		Capabilities struct {
			Resources struct {
				Subscribe bool `json:"subscribe"`
			} `json:"resources"`
		} `json:"capabilities"`
	}
	return json.Unmarshal(hs.raw, &r) == nil && r.Capabilities.Resources.Subscribe
}
