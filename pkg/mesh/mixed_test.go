package mesh

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	unlisted   = `"error":{"code":-32601,"message":"no such tool","data":{"kind":"method_not_found","ran":"no"}}`
	ownUnknown = `"error":{"code":-32601,"message":"its own"}`
)

// TestMixedVersions calls a tool that only the newer one of two ready versions has. An instance of the older one refuses
// it; the client then addresses an instance of the newer one, once.
func TestMixedVersions(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	var queue, direct atomic.Int64 // requests
	var queueSends, directSends atomic.Pointer[string]
	nc := b.connect()
	answer := func(n *atomic.Int64, body *atomic.Pointer[string]) nats.MsgHandler {
		return func(m *nats.Msg) {
			n.Add(1)
			asMesh(m, *body.Load())
		}
	}
	if _, err := nc.QueueSubscribe("ext.x.rpc", wire.QueueGroup, answer(&queue, &queueSends)); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("ext.x.rpc.i2.0.0", answer(&direct, &directSends)); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	state := func(versions ...string) wire.StateDoc {
		doc := wire.StateDoc{State: heartbeat.Ready, Available: true}
		for _, v := range versions {
			doc.Instances = append(doc.Instances, wire.InstanceState{Instance: "i" + v, Version: v, State: heartbeat.Ready})
		}
		return doc
	}
	const done = `"result":"new"`
	for _, tt := range []struct {
		what          string
		features      []string
		queue, direct string // answers
		state         wire.StateDoc
		queued, sent  int64 // requests
		code          rpc.Code
		text          string
	}{
		{"two versions", []string{wire.FeatureInstance}, unlisted, done, state("1.0.0", "2.0.0"), 1, 1, 0, ""},
		{"in neither", []string{wire.FeatureInstance}, unlisted, unlisted, state("1.0.0", "2.0.0"), 1, 1, rpc.CodeMethodNotFound, "no such tool"},
		{"in neither of 16", []string{wire.FeatureInstance}, unlisted, unlisted,
			state(append(strings.Split(strings.Repeat("1.0.0 ", 15), " ")[:15], "2.0.0")...), 1, 1, rpc.CodeMethodNotFound, "no such tool"},
		{"the tool's own error", []string{wire.FeatureInstance}, ownUnknown, done, state("1.0.0", "2.0.0"), 1, 0, rpc.CodeMethodNotFound, "its own"},
		{"the tool's own error, at the newer one", []string{wire.FeatureInstance}, unlisted, ownUnknown, state("1.0.0", "2.0.0"), 1, 1, rpc.CodeMethodNotFound, "its own"},
		{"the newer one has stopped", []string{wire.FeatureInstance}, unlisted, `"error":{"code":-32003,"message":"stopped","data":{"kind":"unavailable","ran":"no"}}`,
			state("1.0.0", "2.0.0"), 1, 1, rpc.CodeMethodNotFound, "no such tool"},
		{"no subjects of their own", nil, unlisted, done, state("1.0.0", "2.0.0"), 1, 0, rpc.CodeMethodNotFound, "no such tool"},
		{"one version", []string{wire.FeatureInstance}, unlisted, done, state("2.0.0", "2.0.0"), 1, 0, rpc.CodeMethodNotFound, "no such tool"},
		{"none of the shown one", []string{wire.FeatureInstance}, unlisted, done, state("1.0.0", "1.5.0"), 1, 0, rpc.CodeMethodNotFound, "no such tool"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			queue.Store(0)
			direct.Store(0)
			queueSends.Store(&tt.queue)
			directSends.Store(&tt.direct)
			b.put("spec.x", wire.Spec{ID: "x", Version: "2.0.0", Subject: "ext.x.rpc", Dialect: "mcp", Features: tt.features, Tools: []wire.Tool{{Name: "ext_x_new", Own: "new"}}})
			b.put("state.x", tt.state)
			catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := NewClient(b.nc, ClientOptions{Catalog: catalog}).Call(t.Context(), "ext_x_new", nil)
			if tt.code == 0 && string(got) != `"new"` || tt.code != 0 && (rpc.AsError(err).Code != tt.code || err.Error() != tt.text) {
				t.Errorf("got %s, %v", got, err)
			}
			if queue.Load() != tt.queued || direct.Load() != tt.sent {
				t.Errorf("%d requests to the queue group and %d to the newer instance, want %d and %d", queue.Load(), direct.Load(), tt.queued, tt.sent)
			}
		})
	}
}

// TestToolRunsOnce counts the runs of a tool that answers -32601 and others of the mesh's codes as its own error: in
// either dialect, served by a Toolbox, by a handler and by a foreign service, while the catalog shows two versions.
func TestToolRunsOnce(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	var runs atomic.Int64
	node := serve.NewPublisher(b.connect(), serve.PublisherOptions{})
	own := func(code rpc.Code) error { return &rpc.Error{Code: code, Message: "its own"} }
	var code atomic.Int64
	run := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) {
		runs.Add(1)
		return nil, own(rpc.Code(code.Load()))
	})
	box := &Toolbox{Version: "1.0.0"}
	box.AddRaw("act", "", nil, run)
	box.AddRaw("claims", "", nil, func(context.Context, *rpc.Request) (json.RawMessage, error) {
		runs.Add(1)
		return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "its own")
	})
	serveSlot(t, node, "box", box)
	serveSlot(t, node, "bare", run)
	nc := b.connect()
	if _, err := nc.QueueSubscribe("ext.foreign.rpc", wire.QueueGroup, func(m *nats.Msg) {
		runs.Add(1)
		m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":` + rpcNumber(code.Load()) + `,"message":"its own","data":{"kind":"method_not_found","ran":"no"}}}`))
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	for _, id := range []string{"box", "bare", "foreign"} {
		for _, dialect := range []string{"ext", "mcp"} {
			b.put("spec."+id, wire.Spec{ID: id, Version: "2.0.0", Subject: "ext." + id + ".rpc", Dialect: dialect, Features: []string{wire.FeatureInstance},
				Tools: []wire.Tool{{Name: "ext_" + id + "_act", Own: "act"}, {Name: "ext_" + id + "_claims", Own: "claims"}}})
			b.put("state."+id, wire.StateDoc{State: heartbeat.Ready, Available: true, Instances: []wire.InstanceState{
				{Instance: "a", Version: "1.0.0", State: heartbeat.Ready}, {Instance: id, Version: "2.0.0", State: heartbeat.Ready}}})
			catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, tool := range []string{"act", "claims"} {
				for _, c := range []rpc.Code{rpc.CodeMethodNotFound, rpc.CodeInvalidParams, rpc.CodeUnavailable, rpc.CodeOverloaded, rpc.CodeExited} {
					runs.Store(0)
					code.Store(int64(c))
					_, err := NewClient(b.nc, ClientOptions{Catalog: catalog}).Call(t.Context(), "ext_"+id+"_"+tool, nil)
					if runs.Load() != 1 || err == nil || err.Error() != "its own" {
						t.Errorf("%s, %s, %s, %d: it ran %d times: %v", id, dialect, tool, c, runs.Load(), err)
					}
				}
			}
		}
	}
}

// serveSlot serves h as an instance of id's, named like it, until the test ends.
func serveSlot(t *testing.T, node *serve.Publisher, id string, h rpc.Handler) {
	t.Helper()
	ready := make(chan struct{})
	slot := node.Join(wire.Announce{ID: id, Version: "2.0.0", Instance: id})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- slot.Serve(ctx, h, serve.Options{OnReady: func() { close(ready) }}) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
}

func rpcNumber(n int64) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// TestMixedVersionsDenied: where NATS denies the subject of the instance, the refusal of the other one is the answer.
func TestMixedVersionsDenied(t *testing.T) {
	t.Parallel()
	b := &catalogBed{t: t, srv: natstest.Start(t, &server.Options{Port: -1, JetStream: true, NoAuthUser: "all",
		Users: []*server.User{{Username: "all", Password: "x"}, {Username: "agent", Password: "x",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.*.rpc.*"}}}}}})}
	b.nc = b.connect()
	b.bucket()
	nc := b.connect()
	if _, err := nc.QueueSubscribe("ext.x.rpc", wire.QueueGroup, func(m *nats.Msg) { asMesh(m, unlisted) }); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("ext.x.rpc.new", func(m *nats.Msg) { asMesh(m, `"result":1`) }); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	b.put("spec.x", wire.Spec{ID: "x", Version: "2.0.0", Subject: "ext.x.rpc", Features: []string{wire.FeatureInstance, wire.FeatureStream}, Tools: []wire.Tool{{Name: "ext_x_new", Own: "new"}}})
	b.put("state.x", wire.StateDoc{State: heartbeat.Ready, Available: true, Instances: []wire.InstanceState{
		{Instance: "old", Version: "1.0.0", State: heartbeat.Ready}, {Instance: "new", Version: "2.0.0", State: heartbeat.Ready}}})
	catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	agent := b.srv.Connect(nats.UserInfo("agent", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	_, err = NewClient(agent, ClientOptions{Catalog: catalog}).Call(t.Context(), "ext_x_new", nil)
	if e := rpc.AsError(err); e == nil || e.Code != rpc.CodeMethodNotFound || e.Message != "no such tool" {
		t.Errorf("the call ended with %v", err)
	}
}
