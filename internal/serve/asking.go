package serve

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// asking is the part of a Node that says which micro services it has, to whoever asks. One goroutine answers for all of
// them: who floods it with questions loses answers to those, and no call.
type asking struct {
	in chan *nats.Msg

	mu       sync.Mutex
	services map[*microService]struct{}
	subs     map[*nats.Subscription]question
}

// question is what is asked by a subscription.
type question struct {
	verb micro.Verb
	of   *microService // nil: all there are
}

// maxAsking is how many questions wait; more are not heard.
const maxAsking = 1024

func newAsking() *asking {
	return &asking{in: make(chan *nats.Msg, maxAsking), services: map[*microService]struct{}{}, subs: map[*nats.Subscription]question{}}
}

// listen has what comes to subject answered for of or, where that is nil, for all services.
func (a *asking) listen(nc *nats.Conn, verb micro.Verb, subject string, of *microService) error {
	a.mu.Lock() // what comes by the new subscription waits until it is known
	defer a.mu.Unlock()
	sub, err := nc.ChanSubscribe(subject, a.in)
	if err != nil {
		return err
	}
	a.subs[sub] = question{verb, of}
	if of != nil {
		of.subs = append(of.subs, sub)
		a.services[of] = struct{}{}
	}
	return nil
}

// leave forgets a service.
func (a *asking) leave(m *microService) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(m.subs)
	m.subs = nil
	delete(a.services, m)
}

// drop ends subscriptions. The caller holds mu.
func (a *asking) drop(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // or the connection is closed, and it with it
		delete(a.subs, sub)
	}
}

// whom is what is asked by sub, and of which services.
func (a *asking) whom(sub *nats.Subscription) (verb micro.Verb, services []*microService) {
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

// listenForAll has questions to all services of the mesh heard, until leave.
func (n *Publisher) listenForAll() (leave func(), err error) {
	leave = func() {
		n.asking.mu.Lock()
		defer n.asking.mu.Unlock()
		var subs []*nats.Subscription
		for sub, q := range n.asking.subs {
			if q.of == nil {
				subs = append(subs, sub)
			}
		}
		n.asking.drop(subs)
	}
	for _, verb := range microVerbs {
		subject, err := micro.ControlSubject(verb, "", "")
		if err == nil {
			err = n.asking.listen(n.nc, verb, subject, nil)
		}
		if err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// answerQuestions answers who asks for micro services, until ctx ends.
func (n *Publisher) answerQuestions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.asking.in:
			n.answerQuestion(m)
		}
	}
}

func (n *Publisher) answerQuestion(m *nats.Msg) {
	if m.Reply == "" || !n.mayAnswer(m.Reply) {
		return
	}
	verb, services := n.asking.whom(m.Sub)
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
