package serve

import (
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// connErrors are the Publishers of one connection that handle its errors. They share one handler: with a chain of handlers
// they would have to end in the reverse order.
type connErrors struct {
	nodes  map[*Publisher]int // how often each listens
	before nats.ErrHandler    // the handler of the connection, which is called as well, and restored after the last Publisher
}

// listeners has an entry for each connection with a Publisher: a connection has one handler, and does not return where it
// was set.
var listeners = struct {
	sync.Mutex
	conns map[*nats.Conn]*connErrors
}{conns: map[*nats.Conn]*connErrors{}}

// listenForDenials reports denied subscriptions of the connection to the services of n, until leave. It is called before the
// first service starts, and leave after the last one has ended.
func (n *Publisher) listenForDenials() (leave func()) {
	listeners.Lock()
	defer listeners.Unlock()
	l := listeners.conns[n.nc]
	if l == nil {
		l = &connErrors{nodes: map[*Publisher]int{}, before: n.nc.ErrorHandler()}
		listeners.conns[n.nc] = l
		n.nc.SetErrorHandler(l.handle)
	}
	l.nodes[n]++
	return func() { l.leave(n) }
}

func (l *connErrors) handle(nc *nats.Conn, sub *nats.Subscription, err error) {
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
