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

// The limits of connections with the credentials of clients.
const (
	maxIdentities = 64
	identityIdle  = 10 * time.Minute
	dialTimeout   = 10 * time.Second
)

// identities are the connections with the credentials of clients, by file.
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

	users int // guarded by identities.mu, as the rest
	used  time.Time
	gone  bool // it is not in identities any more
}

var (
	errNoMesh      = errors.New("the mesh is not reachable")
	errConnections = errors.New("too many clients with credentials of their own")
)

// mesh returns the mesh as the client may use it: with the client's own credentials if it has some. via must be released; it
// is nil for a client without.
func (c *client) mesh(ctx context.Context) (b *backend, via *identity, err error) {
	base := c.door.mesh.Load()
	if base == nil {
		return nil, nil, errNoMesh
	}
	if c.natsContext == "" {
		return base, nil, nil
	}
	via, err = c.identities.acquire(ctx, c.natsContext, base)
	if err != nil {
		return nil, nil, err
	}
	return &backend{base.catalog, via.conn.Client, base.events}, via, nil
}

// acquire returns the connection with the credentials of a file, and makes it if there is none.
func (s *identities) acquire(ctx context.Context, natsContext string, base *backend) (*identity, error) {
	s.mu.Lock()
	id := s.all[natsContext]
	if id != nil && (id.base != base || id.isClosed()) {
		s.remove(id)
		id = nil
	}
	if id == nil {
		if len(s.all) >= maxIdentities && !s.makeRoom() {
			s.mu.Unlock()
			s.door.opt.Logger.Warn("a client with credentials of its own is refused: all connections for such clients are in use", "limit", maxIdentities)
			return nil, errConnections
		}
		id = &identity{natsContext: natsContext, base: base, done: make(chan struct{})}
		s.all[natsContext] = id
		go s.connect(context.WithoutCancel(ctx), id) // ends with the attempt, within dialTimeout
	}
	id.users++
	s.mu.Unlock()
	select {
	case <-id.done:
	case <-ctx.Done():
		s.release(id)
		return nil, context.Cause(ctx)
	}
	if id.err != nil {
		s.release(id)
		return nil, id.err
	}
	return id, nil
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
	if id.err != nil && !id.gone {
		s.remove(id) // the next call tries again
	}
	s.closeUnused(id)
}

// isClosed reports whether a connection has ended. The caller holds identities.mu.
func (id *identity) isClosed() bool {
	return isClosed(id.done) && id.err == nil && id.conn.IsClosed()
}

// release ends the use of id, which can be nil.
func (s *identities) release(id *identity) {
	if id == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id.users--
	id.used = time.Now()
	s.closeUnused(id)
}

// makeRoom closes the connection that has not been used for longest. It returns false if all are in use. The caller holds mu.
func (s *identities) makeRoom() bool {
	var oldest *identity
	for _, id := range s.all {
		if id.users == 0 && (oldest == nil || id.used.Before(oldest.used)) {
			oldest = id
		}
	}
	if oldest != nil {
		s.remove(oldest)
	}
	return oldest != nil
}

// remove lets the next client make another connection. The caller holds mu.
func (s *identities) remove(id *identity) {
	delete(s.all, id.natsContext)
	id.gone = true
	s.closeUnused(id)
}

// closeUnused closes a connection that has been removed and is not used any more. The caller holds mu.
func (s *identities) closeUnused(id *identity) {
	if !isClosed(id.done) {
		return // connect calls it again
	}
	if id.gone && id.users == 0 && id.conn.Close != nil {
		go id.conn.Close() // ends when nats.go does not dial any more
		id.conn.Close = nil
	}
}

// sweep closes the connections that have not been used for long before now.
func (s *identities) sweep(now time.Time, idle time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.all {
		if id.users == 0 && now.Sub(id.used) > idle {
			s.remove(id)
		}
	}
}

// close closes the connections that are not used, and the others when they are released.
func (s *identities) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.all {
		s.remove(id)
	}
}
