package serve

import (
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// connErrors are the Nodes of one connection that hear of its errors. They share one handler: handlers in a chain
// would have to be taken out in the reverse order, and Nodes end in any.
type connErrors struct {
	nodes  map[*Publisher]int // how often each listens
	before nats.ErrHandler    // the connection's, which is told as ever, and put back when the last Node leaves
}

// listeners has an entry for each connection that a Node listens on: a connection has one handler, and no place where
// it could be asked whose that is.
var listeners = struct {
	sync.Mutex
	conns map[*nats.Conn]*connErrors
}{conns: map[*nats.Conn]*connErrors{}}

// listenForDenials has the connection tell n's services which of their subscriptions are denied, until leave. It comes
// before the first service, and leave after the last.
func (n *Publisher) listenForDenials() (leave func()) {
	listeners.Lock()
	defer listeners.Unlock()
	l := listeners.conns[n.nc]
	if l == nil {
		l = &connErrors{nodes: map[*Publisher]int{}, before: n.nc.ErrorHandler()}
		listeners.conns[n.nc] = l
		n.nc.SetErrorHandler(l.hear)
	}
	l.nodes[n]++
	return func() { l.leave(n) }
}

func (l *connErrors) hear(nc *nats.Conn, sub *nats.Subscription, err error) {
	if subject, ok := natsconn.DeniedSubscription(err); ok {
		listeners.Lock()
		nodes := slices.Collect(maps.Keys(l.nodes))
		listeners.Unlock()
		for _, n := range nodes {
			n.denied(subject)
		}
	}
	if l.before != nil {
		l.before(nc, sub, err)
	}
}

func (l *connErrors) leave(n *Publisher) {
	listeners.Lock()
	defer listeners.Unlock()
	if l.nodes[n]--; l.nodes[n] == 0 {
		delete(l.nodes, n)
	}
	if len(l.nodes) == 0 {
		delete(listeners.conns, n.nc)
		n.nc.SetErrorHandler(l.before)
	}
}
