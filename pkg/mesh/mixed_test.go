package mesh

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestMixedVersions calls a tool that only the newer one of two ready versions has. Callers may not address an
// instance; they ask until one answers that knows it.
func TestMixedVersions(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	var asked atomic.Int64
	var answers atomic.Pointer[string]
	nc := b.connect()
	if _, err := nc.QueueSubscribe("ext.x.rpc", QueueGroup, func(m *nats.Msg) {
		body := `"result":"new"`
		if asked.Add(1) < 6 {
			body = *answers.Load()
		}
		m.Respond([]byte(`{"jsonrpc":"2.0","id":1,` + body + `}`))
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	b.put("spec.x", Spec{ID: "x", Version: "2.0.0", Subject: "ext.x.rpc", Dialect: "mcp", Tools: []Tool{{Name: "ext_x_new", Own: "new"}}})
	state := func(versions ...string) StateDoc {
		doc := StateDoc{State: heartbeat.Ready, Available: true}
		for _, v := range versions {
			doc.Instances = append(doc.Instances, InstanceState{Instance: v, Version: v, State: heartbeat.Ready})
		}
		return doc
	}
	const (
		unknown = `"error":{"code":-32601,"message":"no such tool"}`
		unfit   = `"error":{"code":-32602,"message":"no such argument","data":{"ran":"no"}}`
		maybe   = `"error":{"code":-32602,"message":"half way through"}`
	)
	for _, tt := range []struct {
		what, answer string
		state        StateDoc
		asked        int64
		code         rpc.Code
	}{
		{"two versions", unknown, state("1.0.0", "2.0.0"), 6, 0},
		{"an argument of the new one", unfit, state("1.0.0", "2.0.0"), 6, 0},
		{"what may have run", maybe, state("1.0.0", "2.0.0"), 1, rpc.CodeInvalidParams},
		{"one version", unknown, state("2.0.0", "2.0.0"), 1, rpc.CodeMethodNotFound},
		{"none of the shown one", unknown, state("1.0.0", "1.5.0"), 1, rpc.CodeMethodNotFound},
	} {
		asked.Store(0)
		answers.Store(&tt.answer)
		b.put("state.x", tt.state)
		catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewClient(b.nc, ClientOptions{Catalog: catalog}).Call(t.Context(), "ext_x_new", nil)
		if tt.code == 0 && string(got) != `"new"` || tt.code != 0 && rpc.AsError(err).Code != tt.code || asked.Load() != tt.asked {
			t.Errorf("%s: %s, %v after %d tries", tt.what, got, err, asked.Load())
		}
	}

	// One that never finds it ends, and so does one whose caller leaves.
	asked.Store(-1000)
	answers.Store(new(unknown))
	b.put("state.x", state("1.0.0", "2.0.0"))
	catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewClient(b.nc, ClientOptions{Catalog: catalog}).Call(t.Context(), "ext_x_new", json.RawMessage(`{}`))
	if rpc.AsError(err).Code != rpc.CodeMethodNotFound || asked.Load() != -1000+16 {
		t.Errorf("%v after %d tries, want 16", err, asked.Load()+1000)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewClient(b.nc, ClientOptions{Catalog: catalog}).Call(ctx, "ext_x_new", nil); rpc.AsError(err).Code != rpc.CodeCancelled {
		t.Errorf("with a context that has ended: %v", err)
	}
}
