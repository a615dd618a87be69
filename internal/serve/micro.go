package serve

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/wire"
)

// microService is one ready life as the tools for micro services know it (ADR-32: nats micro ls, info, stats). It is
// found, described and counted at the same subjects, and answers in the types of package micro, but is not made by
// micro.AddService: that has twelve goroutines for each service, ten of which wait for somebody who asks what there is,
// and calls a request answered when its handler returns, which here is when it was passed on
// (docs/decisions/0010-micro-services.md).
type microService struct {
	node        *Publisher
	identity    micro.ServiceIdentity
	description string
	started     time.Time
	endpoints   [2]endpoint

	subs []*nats.Subscription // to what it is asked; the Node's asking guards them

	mu      sync.Mutex
	stopped bool
}

// endpoint is one subject on which a service takes calls, and what it has counted there.
type endpoint struct {
	name, subject, queue string
	sub                  *nats.Subscription

	// Of the subscription's goroutine alone: whether the handler was given something to hold, and how many requests
	// were taken up since all was written.
	held  bool
	inRow int

	requests  atomic.Uint64
	errors    atomic.Uint64
	took      atomic.Int64 // nanoseconds, from a request's arrival to its answer
	lastError atomic.Pointer[string]
}

// failed counts a request that was answered with an error.
func (e *endpoint) failed(why string) {
	e.errors.Add(1)
	e.lastError.Store(&why)
}

// microSubscriptions is how many subscriptions a microService has: two endpoints, and for each of three verbs its name
// and itself.
const microSubscriptions = 2 + 3*2

var microVerbs = [...]micro.Verb{micro.PingVerb, micro.InfoVerb, micro.StatsVerb}

// addMicro puts a service on the mesh that answers calls with handle: the queue group's, and those to this instance
// alone. The error is that of a version that is not semver, or of a connection that is closed or drains.
func (n *Publisher) addMicro(a wire.Announce, handle func(*endpoint, *nats.Msg)) (*microService, error) {
	if _, err := semver.StrictNewVersion(a.Version); err != nil {
		return nil, fmt.Errorf("version %.64q of a micro service: %w", a.Version, err)
	}
	sp := wire.Prefix(a.SubjectPrefix)
	m := &microService{node: n, description: a.Name, started: time.Now().UTC(), identity: micro.ServiceIdentity{
		Name: strings.ReplaceAll(a.ID, ".", "_"), ID: nuid.Next(), Version: a.Version, Metadata: microMetadata(a),
	}}
	m.endpoints[0].name, m.endpoints[0].subject, m.endpoints[0].queue = "rpc", sp.RPC(a.ID), wire.QueueGroup
	m.endpoints[1].name, m.endpoints[1].subject = "instance", sp.InstanceRPC(a.ID, a.Instance)
	if err := m.subscribe(handle); err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

// microMetadata is what a service says of itself: less than a kilobyte.
func microMetadata(a wire.Announce) map[string]string {
	metadata := map[string]string{}
	for _, m := range [...]struct{ name, value string }{
		{"bridge", a.Bridge}, {"host", a.Host}, {"instance", a.Instance}, {"transport", a.Transport},
		{"dialect", a.Dialect}, {"manifest_hash", a.ManifestHash},
	} {
		if m.value != "" {
			metadata[m.name] = m.value[:min(len(m.value), 128)]
		}
	}
	return metadata
}

func (m *microService) subscribe(handle func(*endpoint, *nats.Msg)) (err error) {
	n := m.node
	for _, verb := range microVerbs {
		for _, id := range [...]string{"", m.identity.ID} {
			subject, err := micro.ControlSubject(verb, m.identity.Name, id)
			if err != nil {
				return err
			}
			if err := n.asking.listen(n.nc, verb, subject, m); err != nil {
				return err
			}
		}
	}
	for i := range m.endpoints {
		e := &m.endpoints[i]
		take := func(msg *nats.Msg) { handle(e, msg) }
		if e.queue != "" {
			e.sub, err = n.nc.QueueSubscribe(e.subject, e.queue, take)
		} else {
			e.sub, err = n.nc.Subscribe(e.subject, take)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stop takes the service off the mesh. What has arrived is still taken up. After an error it is to be called again.
func (m *microService) stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil
	}
	for i := range m.endpoints {
		e := &m.endpoints[i]
		if e.sub == nil {
			continue
		}
		if err := e.sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("draining the subscription to %s: %w", e.subject, err)
		}
		e.sub = nil
	}
	m.node.asking.leave(m)
	m.stopped = true
	return nil
}

func (m *microService) isStopped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopped
}

// answer is what the service says to verb.
func (m *microService) answer(verb micro.Verb) any {
	switch verb {
	case micro.InfoVerb:
		i := micro.Info{ServiceIdentity: m.identity, Type: micro.InfoResponseType, Description: m.description}
		for j := range m.endpoints {
			e := &m.endpoints[j]
			i.Endpoints = append(i.Endpoints, micro.EndpointInfo{Name: e.name, Subject: e.subject, QueueGroup: e.queue})
		}
		return i
	case micro.StatsVerb:
		s := micro.Stats{ServiceIdentity: m.identity, Type: micro.StatsResponseType, Started: m.started}
		for j := range m.endpoints {
			s.Endpoints = append(s.Endpoints, m.endpoints[j].stats())
		}
		return s
	}
	return micro.Ping{ServiceIdentity: m.identity, Type: micro.PingResponseType}
}

func (e *endpoint) stats() *micro.EndpointStats {
	s := &micro.EndpointStats{Name: e.name, Subject: e.subject, QueueGroup: e.queue, NumRequests: int(e.requests.Load()),
		NumErrors: int(e.errors.Load()), ProcessingTime: time.Duration(e.took.Load())}
	s.AverageProcessingTime = s.ProcessingTime / time.Duration(max(1, s.NumRequests))
	if why := e.lastError.Load(); why != nil {
		s.LastError = *why
	}
	return s
}
