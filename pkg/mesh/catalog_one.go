package mesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// LoadExtension reads one extension's documents into a catalog that holds nothing else: what a program that calls
// one tool and goes needs of a catalog that may have a hundred thousand. An id that the catalog does not know
// gives an empty Catalog. The errors are those of LoadCatalog.
func LoadExtension(ctx context.Context, nc *nats.Conn, o CatalogOptions, id string) (*Catalog, error) {
	if err := wire.CheckID(id, true); err != nil {
		return nil, err
	}
	c := NewCatalog(nc, o)
	var changes []change
	for _, key := range []string{wire.KindSpec + "." + id, wire.KindState + "." + id, wire.KeyLease, wire.KeyEpoch} {
		ch, ok, err := c.lastOf(ctx, key)
		if err != nil {
			return nil, err
		}
		if ok {
			changes = append(changes, ch)
		}
	}
	catalogID := c.catalogID(ctx, changes)
	c.decode(changes)
	c.mu.Lock()
	c.data.id = catalogID
	for _, ch := range changes {
		c.data.apply(ch)
		c.heardAt(ch.at)
	}
	c.mu.Unlock()
	close(c.ready)
	return c, nil
}

// lastOf is the last message of a key; ok is false where there is none.
func (c *Catalog) lastOf(ctx context.Context, key string) (ch change, ok bool, err error) {
	m, err := c.requestPatiently(ctx, c.directGet()+"."+c.keyPrefix()+key, nil)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return ch, false, c.noCatalog()
	case err != nil:
		return ch, false, fmt.Errorf("reading the catalog %s: %w", c.prefix.Bucket(), err)
	case m.Header.Get("Status") == "404":
		return ch, false, nil
	case m.Header.Get("Status") != "":
		return ch, false, fmt.Errorf("reading the catalog %s: JetStream says %s %s",
			c.prefix.Bucket(), m.Header.Get("Status"), m.Header.Get("Description"))
	}
	ch, err = c.stored(m)
	return ch, err == nil, err
}
