package door

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// Connection is a connection to the mesh with the credentials of a client.
type Connection struct {
	Client   *mesh.Client
	IsClosed func() bool // it does not reconnect any more; returns at once
	Close    func()
}

// Dial connects to the mesh with the NATS credentials of a file. The client uses catalog, which the Door has read with its
// own credentials.
type Dial func(ctx context.Context, natsContext string, catalog *mesh.Catalog) (Connection, error)

// dialTimeout is the time limit of an attempt to connect.
const dialTimeout = 10 * time.Second

// identities are the connections with the credentials of clients, by file. The file of the tokens limits their number.
type identities struct {
	door *Door
	dial Dial

	mu  sync.Mutex
	all map[string]*identity
}

// identity is one connection, which all clients with the same credentials share.
type identity struct {
	natsContext string
	base        *backend      // the Door's own connection when it was made
	done        chan struct{} // closed when the attempt to connect has ended
	conn        Connection    // after done
	err         error         // after done
}

var errNoMesh = errors.New("the mesh is not reachable")

// mesh returns the mesh as the client may use it: with the client's own credentials if it has some.
func (c *client) mesh(ctx context.Context) (*backend, error) {
	base := c.door.mesh.Load()
	if base == nil {
		return nil, errNoMesh
	}
	if c.natsContext == "" {
		return base, nil
	}
	conn, err := c.identities.connection(ctx, c.natsContext, base)
	if err != nil {
		return nil, err
	}
	return &backend{base.catalog, conn.Client, base.events}, nil
}

// connection returns the connection with the credentials of a file. It makes one if there is none, if the last one was closed
// or has failed, and if the Door has connected to another mesh since.
func (s *identities) connection(ctx context.Context, natsContext string, base *backend) (Connection, error) {
	s.mu.Lock()
	id := s.all[natsContext]
	if id != nil && (id.base != base || id.hasEnded()) {
		s.remove(id)
		id = nil
	}
	if id == nil {
		id = &identity{natsContext: natsContext, base: base, done: make(chan struct{})}
		s.all[natsContext] = id
		go s.connect(context.WithoutCancel(ctx), id) // ends with the attempt, within dialTimeout
	}
	s.mu.Unlock()
	select {
	case <-id.done:
		return id.conn, id.err
	case <-ctx.Done():
		return Connection{}, context.Cause(ctx)
	}
}

func (s *identities) connect(ctx context.Context, id *identity) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	id.conn, id.err = s.dial(ctx, id.natsContext, id.base.catalog)
	if id.err != nil {
		s.door.opt.Logger.Warn("no connection to NATS with the credentials of a client", "natsContext", id.natsContext, "error", id.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(id.done)
	if s.all[id.natsContext] != id { // it was removed meanwhile
		id.close()
	}
}

// hasEnded reports that the attempt to connect has failed, or that the connection was closed.
func (id *identity) hasEnded() bool {
	return isClosed(id.done) && (id.err != nil || id.conn.IsClosed())
}

// remove closes a connection, as soon as there is one. The caller holds mu.
func (s *identities) remove(id *identity) {
	delete(s.all, id.natsContext)
	if isClosed(id.done) { // otherwise connect closes it
		id.close()
	}
}

// close closes the connection after done.
func (id *identity) close() {
	if id.err == nil {
		go id.conn.Close() // ends when nats.go does not dial any more
	}
}

// close closes all connections.
func (s *identities) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.all {
		s.remove(id)
	}
}
