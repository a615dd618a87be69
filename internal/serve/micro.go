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

// microService is one run of Serve in the form of a micro service (ADR-32: nats micro ls, info, stats). It has the same
// subjects and answers with the types of package micro, but is not made by micro.AddService: that needs twelve goroutines
// per service, ten of which wait for discovery requests, and counts a request as answered when its handler returns, which
// for us is when it was passed on (docs/decisions/0010-micro-services.md).
type microService struct {
	pub         *Publisher
	identity    micro.ServiceIdentity
	description string
	started     time.Time
	endpoints   [2]endpoint

	subs []*nats.Subscription // to discovery requests; guarded by the discovery

	mu       sync.Mutex
	draining []*nats.Subscription // after stop, until forget
	stopped  bool
}

// endpoint is one subject on which a service takes calls, and what it has counted there.
type endpoint struct {
	name, subject, queue string
	sub                  *nats.Subscription

	// Used only by the goroutine of the subscription: whether the handler holds a request, and how many requests were
	// handled since all were written.
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

// microSubscriptions is the number of subscriptions of a microService: two endpoints, and the discovery requests with its name
// and with its id.
const microSubscriptions = 2 + 2

// addMicro subscribes a service that handles with handle the calls of the queue group and the calls to this instance only.
// It fails if the version is not semver, or the connection is closed or draining.
func (n *Publisher) addMicro(a wire.Announce, handle func(*endpoint, *nats.Msg)) (*microService, error) {
	if _, err := semver.StrictNewVersion(a.Version); err != nil {
		return nil, fmt.Errorf("version %.64q of a micro service: %w", a.Version, err)
	}
	sp := wire.Prefix(a.SubjectPrefix)
	m := &microService{pub: n, description: a.Name, started: time.Now().UTC(), identity: micro.ServiceIdentity{
		Name: strings.ReplaceAll(a.ID, ".", "_"), ID: nuid.Next(), Version: a.Version, Metadata: microMetadata(a),
	}}
	m.endpoints[0].name, m.endpoints[0].subject, m.endpoints[0].queue = "rpc", sp.RPC(a.ID), wire.QueueGroup
	m.endpoints[1].name, m.endpoints[1].subject = "instance", sp.InstanceRPC(a.ID, a.Instance)
	if err := m.subscribe(handle); err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

// microMetadata returns the metadata of a service: less than a kilobyte.
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
	n := m.pub
	name := "." + m.identity.Name
	for _, target := range [...]string{name, name + "." + m.identity.ID} {
		if _, err := n.discovery.listen(target, m); err != nil {
			return err
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

// stop unsubscribes the service. Requests that have arrived are still handled, unless there is no connection to answer them on. After an error it has to be called again.
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
		end := e.sub.Drain
		if !m.pub.nc.IsConnected() { // nats.go would subscribe again at the reconnect, and leave the subscription at the server
			end = e.sub.Unsubscribe
		}
		if err := end(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("draining the subscription to %s: %w", e.subject, err)
		}
		m.draining = append(m.draining, e.sub)
		e.sub = nil
	}
	m.pub.discovery.leave(m)
	m.stopped = true
	return nil
}

// forget ends the subscriptions of a stopped service, whose requests have been handled. Until nats.go has removed a drained one
// itself, which can take it 100 ms, a reconnect would subscribe it again, and the server give it calls that nothing handles.
func (m *microService) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, sub := range m.draining {
		_ = sub.Unsubscribe() // it may have been removed
	}
	m.draining = nil
}

func (m *microService) isStopped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopped
}

// answer returns the answer to a discovery request.
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
