package serve

import (
	"context"
	"encoding/json"
	"log/slog"
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
	subs     map[*nats.Subscription]query
}

// query is what the requests of a subscription are about.
type query struct {
	verb micro.Verb
	of   *microService // nil: all there are
}

// maxQueries is the number of requests that can wait; further ones are dropped.
const maxQueries = 1024

func newDiscovery(nc *nats.Conn, opt PublisherOptions) *discovery {
	return &discovery{nc: nc, prefix: opt.Prefix, log: opt.Logger, in: make(chan *nats.Msg, maxQueries), services: map[*microService]struct{}{}, subs: map[*nats.Subscription]query{}}
}

// listen subscribes to subject; its requests are answered for of or, if that is nil, for all services.
func (d *discovery) listen(verb micro.Verb, subject string, of *microService) error {
	d.mu.Lock() // a request that arrives now waits until its subscription is in subs
	defer d.mu.Unlock()
	sub, err := d.nc.ChanSubscribe(subject, d.in)
	if err != nil {
		return err
	}
	d.subs[sub] = query{verb, of}
	if of != nil {
		of.subs = append(of.subs, sub)
		d.services[of] = struct{}{}
	}
	return nil
}

// leave removes a service.
func (d *discovery) leave(m *microService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(m.subs)
	m.subs = nil
	delete(d.services, m)
}

// drop ends subscriptions. The caller holds mu.
func (d *discovery) drop(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // or the connection is closed, and it with it
		delete(d.subs, sub)
	}
}

// lookup returns the verb of a subscription, and the services that answer it.
func (d *discovery) lookup(sub *nats.Subscription) (verb micro.Verb, services []*microService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q, ok := d.subs[sub]
	switch {
	case !ok: // it has just left
	case q.of != nil:
		services = []*microService{q.of}
	default:
		for m := range d.services {
			services = append(services, m)
		}
	}
	return q.verb, services
}

// listenForAll subscribes to the requests to all services of the mesh, until leave.
func (d *discovery) listenForAll() (leave func(), err error) {
	leave = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		var subs []*nats.Subscription
		for sub, q := range d.subs {
			if q.of == nil {
				subs = append(subs, sub)
			}
		}
		d.drop(subs)
	}
	for _, verb := range microVerbs {
		subject, err := micro.ControlSubject(verb, "", "")
		if err == nil {
			err = d.listen(verb, subject, nil)
		}
		if err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
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
	if !d.prefix.MayAnswer(m.Reply) {
		return
	}
	verb, services := d.lookup(m.Sub)
	for _, s := range services {
		data, err := json.Marshal(s.answer(verb))
		if err == nil {
			err = d.nc.Publish(m.Reply, data)
		}
		if err != nil {
			d.log.Warn("cannot answer a discovery request", "service", s.identity.Name, "error", err)
		}
	}
}
