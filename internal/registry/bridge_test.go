package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// fakeBridge is one run of a bridge that sends inventories. It answers pings and requests for its inventory until
// it is killed.
type fakeBridge struct {
	*bed
	name string
	run  string
	sub  *nats.Subscription

	mu        sync.Mutex
	seq       uint64
	fulls     int       // full inventories sent
	lose      int       // messages that are numbered and not sent
	only      *Registry // the replica that receives the messages; nil: all
	instances map[wire.InstanceRef]wire.InventoryInstance
	skills    map[string]wire.SkillEntry
	since     time.Time
	hangs     bool   // does not answer
	stop      func() // stops the heartbeats; nil if there are none
}

// bridge starts a run of a bridge with these instances and sends its full inventory.
func (b *bed) bridge(name, run string, list ...wire.InventoryInstance) *fakeBridge {
	b.Helper()
	f := &fakeBridge{bed: b, name: name, run: run, instances: map[wire.InstanceRef]wire.InventoryInstance{}, skills: map[string]wire.SkillEntry{}, since: time.Now().UTC()}
	for _, i := range list {
		f.instances[i.Ref()] = i
	}
	sub, err := b.nc.Subscribe(prefix.Control(name), f.control)
	if err != nil {
		b.Fatal(err)
	}
	f.sub = sub
	requests, err := b.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) {
		if f.sub.IsValid() {
			f.full()
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = requests.Unsubscribe() }) // the connection may be closed already
	b.flush(b.nc)
	f.full()
	return f
}

func (f *fakeBridge) control(m *nats.Msg) {
	f.mu.Lock()
	if f.hangs {
		f.mu.Unlock()
		return
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"run":%q,"seq":%d}}`, f.run, f.seq)
	f.mu.Unlock()
	if strings.Contains(string(m.Data), `"inventory"`) {
		f.full()
	}
	_ = m.Respond([]byte(answer)) // fails only if the test closed the connection
}

// send numbers and publishes a message.
func (f *fakeBridge) send(v wire.Inventory) {
	v.SchemaVersion, v.Bridge, v.Run, v.IntervalMS = wire.SchemaVersion, f.name, f.run, f.interval.Milliseconds()
	if v.Kind != wire.InventoryHeartbeat {
		f.seq++
	}
	if v.Seq = f.seq; f.lose > 0 {
		f.lose--
		return
	}
	if f.only != nil {
		data, err := json.Marshal(v)
		if err == nil {
			err = f.only.inLoop(f.Context(), func(l *loop) { l.fleet.Control("host", f.name, data, time.Now()) })
		}
		if err != nil {
			f.Error(err)
		}
		return
	}
	f.publish(prefix.HostReport(f.name), v)
}

func (f *fakeBridge) full() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fulls++
	f.send(wire.Inventory{Kind: wire.InventoryFull, Host: &wire.InventoryHost{Host: "host of " + f.name, Version: "1.0.0", Since: f.since},
		Instances: slices.Collect(maps.Values(f.instances)), Skills: slices.Collect(maps.Values(f.skills))})
}

func (f *fakeBridge) heartbeat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.send(wire.Inventory{Kind: wire.InventoryHeartbeat})
}

// beat sends heartbeats until the bridge is killed or the test ends.
func (f *fakeBridge) beat() {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() { // ends with kill, or with the test
		defer close(done)
		for pause.For(ctx, 200*time.Millisecond) {
			f.heartbeat()
		}
	}()
	f.stop = func() { cancel(); <-done }
	f.Cleanup(f.stop)
}

// list returns the instances.
func (f *fakeBridge) list() []wire.InventoryInstance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.instances))
}

// addSkill adds a skill and sends the full inventory.
func (f *fakeBridge) addSkill(s wire.SkillEntry) {
	f.mu.Lock()
	f.skills[s.Dir] = s
	f.mu.Unlock()
	f.full()
}

// set changes or adds instances.
func (f *fakeBridge) set(list ...wire.InventoryInstance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range list {
		f.instances[i.Ref()] = i
	}
	f.send(wire.Inventory{Kind: wire.InventoryDelta, Instances: list})
}

func (f *fakeBridge) remove(list ...wire.InstanceRef) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ref := range list {
		delete(f.instances, ref)
	}
	f.send(wire.Inventory{Kind: wire.InventoryDelta, Removed: list})
}

// sendTo lets only one replica receive what is sent by do.
func (f *fakeBridge) sendTo(r *Registry, do func()) {
	only := func(r *Registry) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.only = r
	}
	only(r)
	defer only(nil)
	do()
}

// hang makes the bridge answer requests, or not.
func (f *fakeBridge) hang(v bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs = v
}

// loseNext makes the next message get lost.
func (f *fakeBridge) loseNext() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = 1
}

func (f *fakeBridge) kill() {
	if f.stop != nil {
		f.stop()
	}
	if err := f.sub.Unsubscribe(); err != nil {
		f.Fatal(err)
	}
	f.flush(f.nc)
}

func (f *fakeBridge) doc() (h wire.Host) {
	if v := f.get(fleet.HostKey(f.name)); v != nil {
		if err := json.Unmarshal(v, &h); err != nil {
			f.Error(err)
		}
	}
	return h
}

// entry is the entry of a fakeExt in the inventory of a bridge.
func (e *fakeExt) entry(bridge string, s heartbeat.State) wire.InventoryInstance {
	a := e.a
	a.Bridge, a.Host = bridge, "host of "+bridge
	return wire.InventoryInstance{Announce: a, State: s}
}

func (f *fakeBridge) is(s heartbeat.State) func() bool {
	return func() bool { return f.doc().State == s }
}

// on makes an instance one of a bridge: its state is in the inventory of the bridge.
func (e *fakeExt) on(f *fakeBridge) *fakeExt {
	e.owner, e.a.Bridge, e.a.Host = f, f.name, "host of "+f.name
	return e
}

// instances formats the list in state.<id> as "instance state".
func (b *bed) instances(id string) string {
	var out []string
	for _, i := range b.state(id).Instances {
		out = append(out, i.Instance+" "+string(i.State))
	}
	return strings.Join(out, ", ")
}
