package serve

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// discovery is the part of a Publisher that answers the discovery requests of micro services. One goroutine answers for all
// services: a flood of requests costs answers to such requests, and no calls.
type discovery struct {
	in chan *nats.Msg

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

func newDiscovery() *discovery {
	return &discovery{in: make(chan *nats.Msg, maxQueries), services: map[*microService]struct{}{}, subs: map[*nats.Subscription]query{}}
}

// listen subscribes to subject; its requests are answered for of or, if that is nil, for all services.
func (a *discovery) listen(nc *nats.Conn, verb micro.Verb, subject string, of *microService) error {
	a.mu.Lock() // what comes by the new subscription waits until it is known
	defer a.mu.Unlock()
	sub, err := nc.ChanSubscribe(subject, a.in)
	if err != nil {
		return err
	}
	a.subs[sub] = query{verb, of}
	if of != nil {
		of.subs = append(of.subs, sub)
		a.services[of] = struct{}{}
	}
	return nil
}

// leave removes a service.
func (a *discovery) leave(m *microService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(m.subs)
	m.subs = nil
	delete(a.services, m)
}

// drop ends subscriptions. The caller holds mu.
func (a *discovery) drop(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // or the connection is closed, and it with it
		delete(a.subs, sub)
	}
}

// lookup returns the verb of a subscription, and the services that answer it.
func (a *discovery) lookup(sub *nats.Subscription) (verb micro.Verb, services []*microService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, ok := a.subs[sub]
	switch {
	case !ok: // it has just left
	case q.of != nil:
		services = []*microService{q.of}
	default:
		for m := range a.services {
			services = append(services, m)
		}
	}
	return q.verb, services
}

// listenForAll subscribes to the requests to all services of the mesh, until leave.
func (n *Publisher) listenForAll() (leave func(), err error) {
	leave = func() {
		n.discovery.mu.Lock()
		defer n.discovery.mu.Unlock()
		var subs []*nats.Subscription
		for sub, q := range n.discovery.subs {
			if q.of == nil {
				subs = append(subs, sub)
			}
		}
		n.discovery.drop(subs)
	}
	for _, verb := range microVerbs {
		subject, err := micro.ControlSubject(verb, "", "")
		if err == nil {
			err = n.discovery.listen(n.nc, verb, subject, nil)
		}
		if err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// answerQueries answers discovery requests until ctx ends.
func (n *Publisher) answerQueries(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.discovery.in:
			n.answerQuery(m)
		}
	}
}

func (n *Publisher) answerQuery(m *nats.Msg) {
	if m.Reply == "" || !n.mayAnswer(m.Reply) {
		return
	}
	verb, services := n.discovery.lookup(m.Sub)
	for _, s := range services {
		data, err := json.Marshal(s.answer(verb))
		if err == nil {
			err = n.nc.Publish(m.Reply, data)
		}
		if err != nil {
			n.opt.Logger.Warn("could not say what is asked of a micro service", "service", s.identity.Name, "error", err)
		}
	}
}
