package mesh

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// An agent may read the catalog by direct get and receive its events, and nothing else: above all it may not create
// consumers, which can deliver into the queue group of any service. Following must be possible with these permissions.
func TestCatalogWithAgentPermissions(t *testing.T) {
	srv := natstest.Start(t, &server.Options{
		Port: -1, JetStream: true,
		Users: []*server.User{{Username: "registry", Password: "p"}, {Username: "agent", Password: "p", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"$JS.API.DIRECT.GET.KV_ext_catalog", "$JS.API.DIRECT.GET.KV_ext_catalog.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.agent.>", "ext.registry.catalog.>"}},
		}}},
	})
	connect := func(user string, opts ...nats.Option) *nats.Conn {
		return srv.Connect(append(opts, nats.UserInfo(user, "p"))...)
	}
	b := &catalogBed{t: t, srv: srv, nc: connect("registry")}
	b.bucket()
	b.put("spec.a", testSpec("a", "1.0.0", "x"))
	b.put(wire.KeyEpoch, `{"catalog_id":"2026-01-02T03:04:05Z"}`)
	agent := connect("agent", nats.CustomInboxPrefix("_INBOX.agent"), nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Errorf("agent: %v", err) }))
	c := b.followOn(agent, CatalogOptions{})
	b.put("state.a", testState(heartbeat.Ready))
	await(t, c, "a is ready", has("a", heartbeat.Ready))
	if err := agent.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	b.put("state.a", testState(heartbeat.Lost))
	await(t, c, "a is lost", has("a", heartbeat.Lost))
	if id, _ := c.Revision(); id != "2026-01-02T03:04:05Z" {
		t.Errorf("catalog id %q", id)
	}
	if _, err := LoadExtension(t.Context(), agent, CatalogOptions{}, "a"); err != nil {
		t.Error(err)
	}
}

// Three nodes, an R3 bucket that is written all the time: the follower's node goes away, the leader steps down,
// the network of the follower is cut. In the end the follower has what the bucket has.
func TestCatalogCluster(t *testing.T) {
	if os.Getenv("EXTMESH_SLOW") == "" {
		t.Skip("three servers, on two cores next to other tests; set EXTMESH_SLOW=1")
	}
	nodes := natstest.Cluster(t, 3, &server.Options{JetStream: true})
	b := &catalogBed{t: t, srv: nodes[0]}
	b.nc = b.connect()
	js := natstest.JetStream(t, b.nc)
	var err error
	b.kv, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "ext_catalog", Replicas: 3, LimitMarkerTTL: time.Minute,
		RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"},
	})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(nodes[1].ClientURL()+","+nodes[2].ClientURL(), nats.Timeout(time.Minute), nats.DontRandomize(), nats.MaxReconnects(-1),
		nats.ReconnectWait(20*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c := b.followOn(nc, CatalogOptions{})

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with cancel
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("state.e%d", i%300)
			put, stop := context.WithTimeout(ctx, time.Second)
			if i%7 == 3 {
				_ = b.kv.Delete(put, key) // what fails here is the point of the test
			} else {
				_, _ = b.kv.PutString(put, key, fmt.Sprintf(`{"state":"ready","reason":"%d"}`, i))
			}
			stop()
		}
	})
	progress := func(what string) {
		t.Helper()
		_, from := c.Revision()
		await(t, c, what, func(c *Catalog) bool { _, now := c.Revision(); return now > from+200 })
	}
	progress("start")
	if _, err := b.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_ext_catalog", nil, time.Minute); err != nil {
		t.Error(err)
	}
	progress("after a stepdown")
	nodes[1].Shutdown()
	progress("after the loss of the follower's node")
	for range 5 {
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		progress("after a reconnect")
	}
	cancel()
	wg.Wait()
	natstest.Eventually(t, "there is a leader for the last write", func() bool {
		put, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err := b.kv.PutString(put, "state.end", `{"state":"ready"}`)
		return err == nil
	})
	await(t, c, "the end", has("end", heartbeat.Ready))
	b.compare(c)
}
