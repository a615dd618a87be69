package mesh

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// LoadExtension reads the documents of one extension into a catalog that has nothing else. That is enough for a program that
// makes one call, and fast in a catalog with many tools. For an unknown id the Catalog is empty. It returns the same errors
// as LoadCatalog.
func LoadExtension(ctx context.Context, nc *nats.Conn, o CatalogOptions, id string) (*Catalog, error) {
	if err := wire.CheckID(id, true); err != nil {
		return nil, err
	}
	c := NewCatalog(nc, o)
	changes, through, err := c.loadKeys(ctx, wire.KindSpec+"."+id, wire.KindState+"."+id, wire.KeyLease, wire.KeyEpoch)
	if err != nil {
		return nil, err
	}
	c.takeAll(changes, through, catalogID(changes))
	return c, nil
}
