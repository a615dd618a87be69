package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// catalogBed is a server with a catalog bucket and a writer.
type catalogBed struct {
	t   testing.TB
	srv *natstest.Server
	nc  *nats.Conn // the writer's
	kv  jetstream.KeyValue
}

func newCatalogBed(t testing.TB) *catalogBed {
	b := &catalogBed{t: t, srv: natstest.Start(t, &server.Options{Port: -1, JetStream: true})}
	b.nc = b.connect()
	return b
}

func (b *catalogBed) connect() *nats.Conn {
	b.t.Helper()
	return b.srv.Connect(nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// bucket makes the catalog's bucket as the registry makes it.
func (b *catalogBed) bucket() {
	b.t.Helper()
	js := natstest.JetStream(b.t, b.nc)
	for deadline := time.Now().Add(time.Minute); ; {
		var err error
		b.kv, err = js.CreateKeyValue(b.t.Context(), jetstream.KeyValueConfig{
			Bucket: "ext_catalog", LimitMarkerTTL: time.Minute,
			RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"},
		})
		if err == nil {
			return
		}
		// The server tidies a deleted bucket's files away behind its answer, and trips over that when it makes them again.
		if jerr, ok := errors.AsType[*jetstream.APIError](err); !ok || jerr.ErrorCode != 10049 || time.Now().After(deadline) {
			b.t.Fatal(err)
		}
	}
}

func (b *catalogBed) dropBucket() {
	b.t.Helper()
	if err := natstest.JetStream(b.t, b.nc).DeleteKeyValue(b.t.Context(), "ext_catalog"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *catalogBed) put(key string, doc any) uint64 {
	b.t.Helper()
	data, ok := doc.(string)
	if !ok {
		enc, err := json.Marshal(doc)
		if err != nil {
			b.t.Fatal(err)
		}
		data = string(enc)
	}
	rev, err := b.kv.PutString(b.t.Context(), key, data)
	if err != nil {
		b.t.Fatal(err)
	}
	return rev
}

func (b *catalogBed) del(key string) {
	b.t.Helper()
	if err := b.kv.Delete(b.t.Context(), key); err != nil {
		b.t.Fatal(err)
	}
}

// follow runs a catalog on a connection of its own until the test ends.
func (b *catalogBed) follow(o CatalogOptions) *Catalog {
	b.t.Helper()
	return b.followOn(b.connect(), o)
}

func (b *catalogBed) followOn(nc *nats.Conn, o CatalogOptions) *Catalog {
	b.t.Helper()
	c := NewCatalog(nc, o)
	c.keep = 200 * time.Millisecond
	b.run(c)
	return c
}

// run has a catalog follow until the test ends.
func (b *catalogBed) run(c *Catalog) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the test
		if err := c.Run(ctx); err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(func() { cancel(); wg.Wait() })
}

// await waits until cond holds of the catalog.
func await(t *testing.T, c *Catalog, what string, cond func(*Catalog) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.WaitFor(ctx, cond); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func testSpec(id, version string, tools ...string) wire.Spec {
	s := wire.Spec{ID: id, Version: version, Transport: "stdio", Dialect: "ext", Subject: "ext." + id + ".rpc", Tools: []wire.Tool{}}
	for _, t := range tools {
		s.Tools = append(s.Tools, wire.Tool{Name: "ext_" + id + "_" + t, Own: t, InputSchema: json.RawMessage(`{"type":"object"}`)})
	}
	return s
}

func testState(s heartbeat.State) wire.StateDoc {
	return wire.StateDoc{State: s, Available: s == heartbeat.Ready, Since: time.Unix(1, 0).UTC(), Instances: []wire.InstanceState{}}
}

func has(id string, s heartbeat.State) func(*Catalog) bool {
	return func(c *Catalog) bool {
		e, ok := c.Get(id)
		return ok && e.State.State == s
	}
}

// onlyMessage answers reads like a bucket that has this one message.
func onlyMessage(t *testing.T, nc *nats.Conn, c *Catalog, key, seq string, at func() time.Time, value string) {
	t.Helper()
	sub, err := nc.Subscribe("$JS.API.DIRECT.GET.KV_ext_catalog", func(m *nats.Msg) {
		r := nats.NewMsg(m.Reply)
		r.Header.Set("Nats-Subject", "$KV.ext_catalog."+key)
		r.Header.Set("Nats-Sequence", seq)
		r.Header.Set("Nats-Time-Stamp", at().UTC().Format(time.RFC3339Nano))
		r.Data = []byte(value)
		end := nats.NewMsg(m.Reply)
		end.Header.Set("Status", "204")
		end.Header.Set("Nats-Num-Pending", "0")
		for _, m := range []*nats.Msg{r, end} {
			if err := nc.PublishMsg(m); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() }) // fails on a closed connection only, which has none
}

func newChange(key string, at catalog.Stamp, value []byte) change {
	return change{Change: catalog.Change{Key: key, At: at, Value: value}}
}
