package mesh

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestCatalogAgeWithAnotherClock reads messages from a server with another clock, all of them and only the newest: a message
// from the future counts as received now.
func TestCatalogAgeWithAnotherClock(t *testing.T) {
	nc := natstest.Start(t, nil).Connect()
	var stamped atomic.Int64 // of the bucket's only message, in unix nanoseconds
	c := NewCatalog(nc, CatalogOptions{})
	onlyMessage(t, nc, c, wire.KeyLease, "7", func() time.Time { return time.Unix(0, stamped.Load()) }, `{}`)
	for what, load := range map[string]func(*Catalog) error{
		"the whole":  func(c *Catalog) error { return c.loadAll(t.Context()) },
		"the newest": func(c *Catalog) error { return c.loadTail(t.Context()) },
	} {
		for by, ahead := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
			t.Run(what+" "+by, func(t *testing.T) {
				c := NewCatalog(nc, CatalogOptions{})
				now := time.Now()
				at := now.Add(ahead)
				stamped.Store(at.UnixNano())
				if err := load(c); err != nil {
					t.Fatal(err)
				}
				if heard := c.data.seen; heard.After(time.Now()) || ahead > 0 && heard.Before(now) || ahead < 0 && !heard.Equal(at) {
					t.Errorf("heard %s from now", heard.Sub(now))
				}
			})
		}
	}
}
