package bridge_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// follower applies the inventory messages of bridge b1 as a registry does, except that it requests nothing.
type follower struct {
	t *testing.T

	mu       sync.Mutex
	run      string
	seq      uint64
	host     wire.InventoryHost
	entries  map[wire.InstanceRef]wire.InventoryInstance
	skills   map[string]wire.SkillEntry
	count    map[wire.InventoryKind]int // complete full inventories, deltas and heartbeats
	building bool                       // parts of a full inventory are missing
}

// follow subscribes to the inventory.
func follow(t *testing.T, nc *nats.Conn) *follower {
	t.Helper()
	f := &follower{t: t, entries: map[wire.InstanceRef]wire.InventoryInstance{}, skills: map[string]wire.SkillEntry{}, count: map[wire.InventoryKind]int{}}
	if _, err := nc.Subscribe("ext.registry.host.b1", f.apply); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *follower) apply(m *nats.Msg) {
	v, err := wire.ParseInventory("b1", m.Data)
	if err != nil {
		f.t.Errorf("%v: %.300s", err, m.Data)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	begins := v.Kind == wire.InventoryFull && v.Part == 1
	if v.Run != f.run {
		if f.seq = v.Seq - 1; !begins {
			f.t.Errorf("run %s begins with %.300s", v.Run, m.Data)
		}
		f.run = v.Run
	}
	if want := f.seq + 1; v.Seq != want && (v.Kind != wire.InventoryHeartbeat || v.Seq != f.seq) {
		f.t.Errorf("message %d, want %d: %.300s", v.Seq, want, m.Data)
	}
	f.seq = v.Seq
	if begins {
		clear(f.entries)
		clear(f.skills)
		f.building = true
	}
	if v.Host != nil {
		f.host = *v.Host
	}
	for _, i := range v.Instances {
		if err := i.Check("b1"); err != nil {
			f.t.Errorf("%v: %+v", err, i)
		}
		f.entries[wire.InstanceRef{ID: i.ID, Instance: i.Instance}] = i
	}
	for _, ref := range v.Removed {
		delete(f.entries, ref)
	}
	for _, s := range v.Skills {
		f.skills[s.Dir] = s
	}
	if v.Kind != wire.InventoryFull || v.Part == v.Parts {
		f.count[v.Kind]++
		f.building = false
	}
}

// waitFor waits until the inventory is complete and cond is true of it.
func (f *follower) waitFor(what string, cond func() bool) {
	f.t.Helper()
	eventually(f.t, what, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.count[wire.InventoryFull] > 0 && !f.building && cond()
	}, f.text)
}

func (f *follower) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := fmt.Sprint(f.count)
	for _, i := range f.entries {
		data, _ := json.Marshal(i)
		text += fmt.Sprintf("\n%.500s", data)
	}
	return text
}

// instances returns the entries of an extension; the caller holds mu, as waitFor's cond does.
func (f *follower) instances(id string) (list []wire.InventoryInstance) {
	for i := range maps.Values(f.entries) {
		if i.ID == id {
			list = append(list, i)
		}
	}
	return list
}

// wait waits until an extension has one instance, for which cond is true.
func (f *follower) wait(id, what string, cond func(wire.InventoryInstance) bool) {
	f.t.Helper()
	f.waitFor(id+" "+what, func() bool {
		list := f.instances(id)
		return len(list) == 1 && cond(list[0])
	})
}

// fulls waits for a number of full inventories.
func (f *follower) fulls(n int, what string) {
	f.t.Helper()
	f.waitFor(what, func() bool { return f.count[wire.InventoryFull] >= n })
}
