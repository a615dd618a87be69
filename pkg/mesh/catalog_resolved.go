package mesh

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// CatalogOfResolved makes a catalog of the result of the registry's method resolve: one extension with one tool, which is
// all that a call needs. For the id of an extension, tool is nil. Nothing updates the catalog.
func CatalogOfResolved(nc *nats.Conn, o CatalogOptions, result json.RawMessage) (c *Catalog, tool *Tool, err error) {
	var r struct {
		CatalogID string   `json:"catalog_id"`
		Revision  uint64   `json:"revision"`
		AgeMS     int64    `json:"age_ms"`
		ID        string   `json:"id"`
		Tool      *Tool    `json:"tool"`
		Spec      Spec     `json:"spec"`
		State     StateDoc `json:"state"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, nil, fmt.Errorf("the registry's answer to resolve: %w", err)
	}
	if err := wire.CheckID(r.ID, true); err != nil {
		return nil, nil, fmt.Errorf("the registry's answer to resolve: %w", err)
	}
	r.Spec.ID, r.Spec.Tools = r.ID, nil
	if r.Tool != nil {
		r.Spec.Tools = []Tool{*r.Tool}
		tool = &r.Spec.Tools[0]
	}
	c = NewCatalog(nc, o)
	at := catalog.Stamp{Seq: max(1, r.Revision)}
	for key, doc := range map[string]any{wire.KindSpec: &r.Spec, wire.KindState: &r.State} {
		c.data.apply(change{Change: catalog.Change{Key: key + "." + r.ID, At: at, Value: []byte{}}, doc: doc})
	}
	c.data.id, c.data.revision = r.CatalogID, r.Revision
	c.data.seen = time.Now().Add(-time.Duration(max(0, r.AgeMS)) * time.Millisecond)
	close(c.ready)
	return c, tool, nil
}
