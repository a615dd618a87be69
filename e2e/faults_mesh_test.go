package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// sharedMesh is what all hosts of a test share: a NATS server, a registry, and a client that follows the catalog.
type sharedMesh struct {
	url     string
	nc      *nats.Conn
	catalog *mesh.Catalog
}

func newSharedMesh(t testing.TB) *sharedMesh {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not come up")
	}
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	w := &sharedMesh{url: ns.ClientURL()}
	w.nc = w.connect(t)
	regNC, followNC := w.connect(t), w.connect(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	reg := registry.New(regNC, registry.Config{Version: "1.0.0", LeaseTTL: 10 * time.Second})
	wg.Go(func() { // ends with ctx
		if err := reg.Run(ctx); err != nil {
			t.Errorf("registry: %v", err)
		}
	})
	w.catalog = mesh.NewCatalog(followNC, mesh.CatalogOptions{})
	wg.Go(func() { w.catalog.Run(ctx) }) // ends with ctx
	return w
}

func (w *sharedMesh) connect(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := mesh.Connect(w.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
