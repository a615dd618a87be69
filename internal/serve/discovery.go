package serve

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/wire"
)

// discovery is the part of a Publisher that answers the discovery requests of micro services. One goroutine answers for all
// services: a flood of requests costs answers to such requests, and no calls.
type discovery struct {
	nc     *nats.Conn
	prefix wire.Prefix
	log    *slog.Logger
	in     chan *nats.Msg

	mu       sync.Mutex
	services map[*microService]struct{}
	subs     map[*nats.Subscription]*microService // the service that a subscription is for; nil: all there are
}

// maxQueries is the number of requests that can wait; further ones are dropped.
const maxQueries = 1024

func newDiscovery(nc *nats.Conn, opt PublisherOptions) *discovery {
	return &discovery{nc: nc, prefix: opt.Prefix, log: opt.Logger, in: make(chan *nats.Msg, maxQueries), services: map[*microService]struct{}{}, subs: map[*nats.Subscription]*microService{}}
}

// listen subscribes to the discovery requests with every verb: those for the name of a service, those for its id, or, if of is
// nil, those for all services. target is what follows the verb in their subject.
func (d *discovery) listen(target string, of *microService) (*nats.Subscription, error) {
	d.mu.Lock() // a request that arrives now waits until its subscription is in subs
	defer d.mu.Unlock()
	sub, err := d.nc.ChanSubscribe(micro.APIPrefix+".*"+target, d.in)
	if err != nil {
		return nil, err
	}
	d.subs[sub] = of
	if of != nil {
		of.subs = append(of.subs, sub)
		d.services[of] = struct{}{}
	}
	return sub, nil
}

// leave removes a service.
func (d *discovery) leave(m *microService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(m.subs...)
	m.subs = nil
	delete(d.services, m)
}

// drop ends subscriptions. The caller holds mu.
func (d *discovery) drop(subs ...*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // or the connection is closed, and it with it
		delete(d.subs, sub)
	}
}

// lookup returns the services that answer the requests of a subscription.
func (d *discovery) lookup(sub *nats.Subscription) []*microService {
	d.mu.Lock()
	defer d.mu.Unlock()
	of, ok := d.subs[sub]
	switch {
	case !ok: // it has just left
		return nil
	case of != nil:
		return []*microService{of}
	}
	return slices.Collect(maps.Keys(d.services))
}

// listenForAll subscribes to the requests to all services of the mesh, until leave.
func (d *discovery) listenForAll() (leave func(), err error) {
	all, err := d.listen("", nil)
	if err != nil {
		return nil, err
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.drop(all)
	}, nil
}

// run answers discovery requests until ctx ends.
func (d *discovery) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-d.in:
			d.answer(m)
		}
	}
}

func (d *discovery) answer(m *nats.Msg) {
	verb, ok := verbOf(m.Subject)
	if !ok || !d.prefix.MayAnswer(m.Reply) {
		return
	}
	for _, s := range d.lookup(m.Sub) {
		data, err := json.Marshal(s.answer(verb))
		if err == nil {
			err = d.nc.Publish(m.Reply, data)
		}
		if err != nil {
			d.log.Warn("cannot answer a discovery request", "service", s.identity.Name, "error", err)
		}
	}
}

// verbOf returns the verb of a discovery request: the second part of its subject.
func verbOf(subject string) (verb micro.Verb, ok bool) {
	name := strings.Split(subject, ".")[1]
	for _, verb := range [...]micro.Verb{micro.PingVerb, micro.InfoVerb, micro.StatsVerb} {
		if name == verb.String() {
			return verb, true
		}
	}
	return 0, false
}
