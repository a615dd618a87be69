package serve

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestPresence: an instance is announced at the start, on request, after a reconnect and when its announcement changes; a
// heartbeat follows each announcement and each change of the state; the shutdown notice is the last message.
func TestPresence(t *testing.T) {
	s := duckServers(t, 1)[0]
	registry, nc := duckConn(t, s), duckConn(t, s)
	received, err := registry.SubscribeSync("ext.registry.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.Flush(); err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	next := func(kind string) *nats.Msg {
		t.Helper()
		for {
			m, err := received.NextMsg(time.Minute)
			if err != nil {
				t.Fatalf("no %s: %v", kind, err)
			}
			if strings.HasPrefix(m.Subject, "ext.registry.heartbeat.") {
				h, err := heartbeat.Parse(m.Data)
				if err != nil || h.Seq != seq+1 || h.IntervalMS != 60_000 {
					t.Errorf("%+v (%v) follows heartbeat %d", h, err, seq)
				}
				seq = h.Seq
			}
			if strings.HasPrefix(m.Subject, "ext.registry."+kind+".") {
				return m
			}
		}
	}
	beat := func(state heartbeat.State) {
		t.Helper()
		for {
			if m, _ := heartbeat.Parse(next("heartbeat").Data); m.State == state {
				return
			}
		}
	}
	n := NewPublisher(nc, PublisherOptions{HeartbeatInterval: time.Minute})
	inst := n.Join(wire.Announce{ID: "x", Version: "1.0.0"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inst.Run(ctx) }() // ends with cancel
	next("announce")
	beat(heartbeat.Spawning)

	inst.Apply(instance.Event{Kind: instance.Serve})
	inst.Apply(instance.Event{Kind: instance.Ready})
	beat(heartbeat.Ready)

	inst.Update(func(a *wire.Announce) { a.HandshakeHash, a.ID = "abc", "not x" })
	for !strings.Contains(string(next("announce").Data), `"id":"x","version":"1.0.0","subject_prefix":"ext","instance":"`+inst.Instance()+`","handshake_hash":"abc"`) {
	}
	beat(heartbeat.Ready)

	for range 10 {
		if err := registry.Publish("ext.registry.request", nil); err != nil {
			t.Fatal(err)
		}
	}
	next("announce")
	beat(heartbeat.Ready)
	if err := nc.Flush(); err != nil { // the server reads each connection in a goroutine of its own
		t.Fatal(err)
	}
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	next("announce")
	beat(heartbeat.Ready)

	inst.Apply(instance.Event{Kind: instance.Stop})
	beat(heartbeat.Draining)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	inst.Apply(instance.Event{Kind: instance.Leave}) // after its end
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var notice wire.ShutdownNotice
	if err := json.Unmarshal(next("shutdown").Data, &notice); err != nil || notice != (wire.ShutdownNotice{ID: "x", Instance: inst.Instance(), Reason: "shutdown"}) {
		t.Errorf("the shutdown notice: %+v, %v", notice, err)
	}
	if m, err := received.NextMsg(100 * time.Millisecond); err == nil {
		t.Errorf("after the shutdown notice: %s %s", m.Subject, m.Data)
	}
}
