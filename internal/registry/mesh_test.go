package registry

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestWithMesh runs the registry with real counterparts: a native service, a follower of the catalog, a client.
func TestWithMesh(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)

	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "greet", "Greets <somebody>.", func(_ context.Context, in struct {
		Name string `json:"name"`
	}) (string, error) {
		return "Hello, " + in.Name + "!", nil
	})
	ctx, stopService := context.WithCancel(t.Context())
	served := make(chan error)
	service := b.connect()
	go func() { // ends with stopService
		served <- mesh.Serve(ctx, service, mesh.Service{ID: "greeter", Version: "1.0.0", Handler: box})
	}()

	c := mesh.NewCatalog(b.connect(), mesh.CatalogOptions{})
	following, stopCatalog := context.WithCancel(t.Context())
	followed := make(chan error)
	go func() { followed <- c.Run(following) }() // ends with stopCatalog
	defer func() {
		stopCatalog()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	}()
	b.await("the follower has it", func() bool {
		e, ok := c.Get("greeter")
		return ok && e.State.Available && len(e.Spec.Tools) == 1
	})
	e, _ := c.Get("greeter")
	if tool := e.Spec.Tools[0]; tool.Name != "ext_greeter_greet" || tool.Description != "[ext:greeter] Greets <somebody>." {
		t.Errorf("tool: %+v", tool)
	}
	if len(e.Spec.Diagnostics) != 0 || e.Spec.Transport != "nats" {
		t.Errorf("spec: %+v", e.Spec)
	}
	b.await("the follower and the registry are at the same revision", func() bool {
		id, revision := c.Revision()
		s := b.status(r)
		return id == s.CatalogID && revision == s.Revision
	})

	client := mesh.NewClient(b.connect(), mesh.ClientOptions{Catalog: c})
	got, err := client.Call(t.Context(), "ext_greeter_greet", json.RawMessage(`{"name":"Ada"}`))
	if err != nil || string(got) != `"Hello, Ada!"` {
		t.Errorf("call: %s, %v", got, err)
	}

	// A crash, without a shutdown notice. The first failing call leads to the correction of the catalog.
	service.Close()
	b.await("the server has noticed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := b.nc.RequestWithContext(ctx, prefix.RPC("greeter"), []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		return errors.Is(err, nats.ErrNoResponders)
	})
	start := time.Now()
	_, err = client.Call(t.Context(), "ext_greeter_greet", json.RawMessage(`{"name":"Ada"}`))
	if !errors.Is(err, rpc.CodeUnavailable) {
		t.Errorf("call: %v", err)
	}
	b.await("the follower has the state", func() bool { e, _ := c.Get("greeter"); return e.State.State == heartbeat.Lost })
	t.Logf("known %v after the crash", time.Since(start))
	stopService()
	<-served // an error, since its connection was closed
}
