package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestLeafNodes runs the hub of operations.md with a registry, and reads and follows the catalog on each of its leaf nodes.
func TestLeafNodes(t *testing.T) {
	t.Parallel()
	var hub, leaves []string
	for _, f := range fences(read(t, "operations.md")) {
		switch f.kind {
		case "hub":
			hub = append(hub, f.text)
		case "leaf":
			leaves = append(leaves, f.text)
		}
	}
	if len(hub) != 1 || len(leaves) != 2 {
		t.Fatalf("the page has %d hubs and %d leaves", len(hub), len(leaves))
	}
	address := freeport.Addr(t)
	run := func(name, config string) *natstest.Server {
		dir := t.TempDir()
		file := filepath.Join(dir, "nats.conf")
		config = strings.NewReplacer("/data/jetstream", dir, "0.0.0.0:7422", address, "hub:7422", address).Replace(config)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o.ServerName, o.Host, o.Port = name, "127.0.0.1", -1
		return natstest.Start(t, o)
	}
	h := run("hub", hub[0])
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	nc := h.Connect()
	go func() { ended <- registry.Run(ctx, nc, registry.Config{}) }() // ends with cancel
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for n, config := range leaves {
		c := run(fmt.Sprint("leaf", n), config).Connect()
		natstest.Eventually(t, "the catalog can be read on the leaf", func() bool {
			_, err := mesh.LoadCatalog(t.Context(), c, mesh.CatalogOptions{})
			return err == nil
		})
		one := mesh.NewCatalog(c, mesh.CatalogOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error, 1)
		go func() { followed <- one.Run(ctx) }() // ends with cancel
		if err := one.WaitSynced(ctx); err != nil {
			t.Error(err)
		}
		since := one.Age()
		natstest.Eventually(t, "a renewal of the lease is received", func() bool { age := one.Age(); renewed := age < since; since = age; return renewed })
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	}
}
