package mesh_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestSlotLeaves has slots come, say how they are from several sides, and go: the good-bye is the last word of each.
func TestSlotLeaves(t *testing.T) {
	connect := startServer(t)
	hearing := connect()
	heard, err := hearing.SubscribeSync("ext.registry.>")
	if err != nil {
		t.Fatal(err)
	}
	hearing.Flush()
	nc := connect()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	early := node.Join(wire.Announce{ID: "early", Version: "1.0.0"})
	early.Apply(instance.Event{Kind: instance.Serve})
	early.Apply(instance.Event{Kind: instance.Ready}) // nothing is published yet
	early.Update(func(a *wire.Announce) { a.Description = "early" })
	early.Enter()
	early.Enter() // changes nothing
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { node.Run(ctx) }) // ends with cancel
	defer running.Wait()
	defer cancel()
	beat := next(t, heard, "ext.registry.heartbeat.early") // of before the node ran
	if !strings.Contains(string(beat.Data), `"state":"ready"`) || !strings.Contains(string(beat.Data), `"seq":1`) {
		t.Errorf("the first beat is %s", beat.Data)
	}

	for range 50 {
		slot := node.Join(wire.Announce{ID: "passing", Version: "1.0.0"})
		slot.Enter()
		var saying sync.WaitGroup
		saying.Go(func() { slot.Beat() }) // these end by themselves
		saying.Go(func() { slot.Apply(instance.Event{Kind: instance.Drain}) })
		saying.Go(func() { slot.Update(func(a *wire.Announce) { a.Host = "h" }) })
		saying.Go(func() { nc.Publish("ext.registry.request", nil) })
		if err := slot.Leave(serve.ErrRemoved); err != nil {
			t.Error(err)
		}
		saying.Wait()
	}
	if err := early.Leave(nil); err != nil {
		t.Error(err)
	}
	early.Apply(instance.Event{Kind: instance.Stop})
	early.Beat()
	early.Update(func(a *wire.Announce) { a.Host = "too late" })
	if err := early.Leave(nil); err != nil { // changes nothing
		t.Error(err)
	}

	late := node.Join(wire.Announce{ID: "late", Version: "1.0.0"})
	late.Enter()
	defer late.Leave(nil)
	reasons := map[string]string{} // of the good-byes, by instance
	for {
		m := next(t, heard, "")
		var said struct{ Instance, Reason string }
		if m.Subject == "ext.registry.heartbeat.late" { // what was to be said before it has been
			break
		}
		if m.Subject == "ext.registry.request" {
			continue
		}
		if err := json.Unmarshal(m.Data, &said); err != nil {
			t.Fatal(err)
		}
		again := strings.Contains(m.Subject, ".shutdown.") && said.Reason == wire.ReasonRemoved
		if was := reasons[said.Instance]; was != "" && !(again && was == said.Reason) {
			t.Errorf("after its good-bye: %s %s", m.Subject, m.Data)
		}
		if strings.Contains(m.Subject, ".shutdown.") {
			reasons[said.Instance] = said.Reason
		}
	}
	if len(reasons) != 51 || reasons[early.Instance()] != "shutdown" {
		t.Errorf("%d good-byes, the first slot's with %q", len(reasons), reasons[early.Instance()])
	}
	early.Enter()
	if beat := next(t, heard, "ext.registry.heartbeat.early"); !strings.Contains(string(beat.Data), `"reason":"stopping"`) {
		t.Errorf("when it is back it says %s", beat.Data)
	}
	if err := early.Leave(serve.ErrRemoved); err != nil {
		t.Error(err)
	}
	for range 2 { // the first may be lost
		if bye := next(t, heard, "ext.registry.shutdown.early"); !strings.Contains(string(bye.Data), `"reason":"removed"`) {
			t.Errorf("for good it left with %s", bye.Data)
		}
	}
}

// next is the next message on a subject, or on any.
func next(t *testing.T, sub *nats.Subscription, subject string) *nats.Msg {
	t.Helper()
	for {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("no %s: %v", subject, err)
		}
		if subject == "" || m.Subject == subject {
			return m
		}
	}
}

// TestSlotEntersAndLeavesAtOnce leaves nothing of a slot that is told both at the same time.
func TestSlotEntersAndLeavesAtOnce(t *testing.T) {
	nc := startServer(t)()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	slot := node.Join(wire.Announce{ID: "x", Version: "1.0.0"})
	before := nc.NumSubscriptions()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(slot.Enter) // these end by themselves
		wg.Go(func() { slot.Leave(nil) })
	}
	wg.Wait()
	if err := slot.Leave(nil); err != nil {
		t.Error(err)
	}
	if n := nc.NumSubscriptions(); n != before {
		t.Errorf("%d subscriptions are left", n-before)
	}
}

// TestSlotsHearOfTheirStateOnce: slots of one extension share one subscription to what the catalog calls it, which each of
// them is found by, and which goes with the last.
func TestSlotsHearOfTheirStateOnce(t *testing.T) {
	connect := startServer(t)
	registry, nc := connect(), connect()
	heard, err := registry.SubscribeSync("ext.registry.announce.x")
	if err != nil {
		t.Fatal(err)
	}
	registry.Flush()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	before := nc.NumSubscriptions()
	var slots []*serve.Instance
	for range 5 {
		slot := node.Join(wire.Announce{ID: "x", Version: "1.0.0"})
		slot.Enter()
		slots = append(slots, slot)
		if n := nc.NumSubscriptions(); n != before+1 {
			t.Errorf("%d subscriptions of %d slots", n-before, len(slots))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { node.Run(ctx) }) // ends with cancel
	defer running.Wait()
	defer cancel()
	for range 2 * len(slots) { // when they entered, and when the node ran
		next(t, heard, "")
	}
	before = nc.NumSubscriptions()
	lost := func(s *serve.Instance) {
		t.Helper()
		for _, state := range []string{"lost", "shutdown"} {
			registry.Publish("ext.registry.catalog.state.x", []byte(`{"instances":[{"instance":"`+s.Instance()+`","state":"`+state+`"}]}`))
			if m := next(t, heard, ""); !strings.Contains(string(m.Data), s.Instance()) {
				t.Errorf("%s was shown as %s, and announced is %s", s.Instance(), state, m.Data)
			}
		}
	}
	for _, s := range slots {
		lost(s)
	}
	for _, s := range slots[1:] { // the one that subscribed may go before the others
		if err := slots[0].Leave(nil); err != nil {
			t.Error(err)
		}
		lost(s)
		slots[0] = s
	}
	if err := slots[0].Leave(nil); err != nil {
		t.Error(err)
	}
	if n := nc.NumSubscriptions(); n != before-1 {
		t.Errorf("%d subscriptions are left of the slots' one", n-before+1)
	}
	slots[0].Enter()
	next(t, heard, "")
	lost(slots[0])
	slots[0].Leave(nil)
}
