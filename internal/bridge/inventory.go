package bridge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

const (
	inventoryPeriod = 5 * time.Minute        // between two full inventories, ±10 %
	minFullPause    = 250 * time.Millisecond // between two full inventories, because one may have a megabyte
	minDeltaPause   = 25 * time.Millisecond  // between two deltas, so that a starting fleet sends a few large ones
)

// inventory reports to the registries what a bridge runs, in numbered messages (docs/protocol.md, "Inventory"). Its run
// method sends all of them; the other methods record what has changed, and may be called by any goroutine at any time.
type inventory struct {
	head     wire.Inventory // the members that all messages have
	contents func() contents
	interval func() time.Duration // between two heartbeats
	limit    func() int           // the size of one message
	publish  func(v wire.Inventory) error
	log      *slog.Logger

	seq  atomic.Uint64 // of the last message that was published
	wake signal

	mu      sync.Mutex
	listed  map[wire.InstanceRef]func() wire.InventoryInstance
	changed map[wire.InstanceRef]bool
	removed []wire.InstanceRef // not reported yet
	fullDue bool

	lastFull, lastSent, heartbeatDue time.Time // used by run only
	failing                          bool      // the last message could not be published; used by run only
}

// contents are the parts of an inventory that a plan determines.
type contents struct {
	host     wire.InventoryHost
	services []wire.InventoryInstance // manifests of services that run elsewhere
	skills   []wire.SkillEntry
}

func newInventory(head wire.Inventory) *inventory {
	head.SchemaVersion = wire.SchemaVersion
	return &inventory{head: head, wake: newSignal(), listed: map[wire.InstanceRef]func() wire.InventoryInstance{},
		changed: map[wire.InstanceRef]bool{}}
}

// add lists an instance from now on. Each message about it has the result of entry at that time.
func (v *inventory) add(ref wire.InstanceRef, entry func() wire.InventoryInstance) {
	v.mu.Lock()
	v.listed[ref] = entry
	v.mu.Unlock()
	v.change(ref)
}

// change reports an instance after its entry has changed. It does nothing if the instance is not listed.
func (v *inventory) change(ref wire.InstanceRef) {
	v.mu.Lock()
	if v.listed[ref] != nil {
		v.changed[ref] = true
	}
	v.mu.Unlock()
	v.wake.send()
}

// remove reports that an instance will not return.
func (v *inventory) remove(ref wire.InstanceRef) {
	v.mu.Lock()
	if v.listed[ref] != nil {
		delete(v.listed, ref)
		delete(v.changed, ref)
		v.removed = append(v.removed, ref)
	}
	v.mu.Unlock()
	v.wake.send()
}

// requestFull has the full inventory sent, at most four times a second.
func (v *inventory) requestFull() {
	v.mu.Lock()
	v.fullDue = true
	v.mu.Unlock()
	v.wake.send()
}

// run sends messages until ctx ends, and then what has changed last. The first message is a full inventory, after
// requestFull was called. connected receives after each reconnect; messages may have been lost then.
func (v *inventory) run(ctx context.Context, connected <-chan nats.Status) {
	next := time.NewTimer(0)
	defer next.Stop()
	periodic := time.NewTimer(tenPercent(inventoryPeriod))
	defer periodic.Stop()
	for {
		select {
		case <-ctx.Done():
			v.sendDelta(time.Now())
			return
		case _, open := <-connected:
			if !open {
				connected = nil
				continue
			}
			v.requestFull()
		case <-periodic.C:
			v.requestFull()
			periodic.Reset(tenPercent(inventoryPeriod))
		case <-v.wake:
		case <-next.C:
		}
		next.Reset(v.send(time.Now()))
	}
}

// tenPercent returns d ±10 %, so that bridges that were started together do not report at the same time.
func tenPercent(d time.Duration) time.Duration { return d*9/10 + rand.N(d/5+1) }

// send sends what is due at now, and returns the time until something may be due.
func (v *inventory) send(now time.Time) time.Duration {
	v.head.IntervalMS = v.interval().Milliseconds() // a reload can change it
	full, delta := v.due()
	switch {
	case full && now.Sub(v.lastFull) >= minFullPause:
		v.sendFull(now)
	case v.lastFull.IsZero(): // a run begins with a full inventory
		return time.Hour
	case delta && now.Sub(v.lastSent) >= minDeltaPause:
		v.sendDelta(now)
	case !now.Before(v.heartbeatDue):
		heartbeat := v.head
		heartbeat.Kind, heartbeat.Seq = wire.InventoryHeartbeat, v.seq.Load()
		v.sent(now, v.publish(heartbeat))
	}
	full, delta = v.due()
	wait := v.heartbeatDue
	if at := v.lastSent.Add(minDeltaPause); delta && at.Before(wait) {
		wait = at
	}
	if at := v.lastFull.Add(minFullPause); full && at.Before(wait) {
		wait = at
	}
	return wait.Sub(now)
}

// due reports what is waiting to be sent.
func (v *inventory) due() (full, delta bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fullDue, len(v.changed)+len(v.removed) > 0
}

// sendFull sends everything.
func (v *inventory) sendFull(now time.Time) {
	v.lastFull = now
	v.mu.Lock()
	v.fullDue, v.removed = false, nil
	clear(v.changed)
	refs := make([]wire.InstanceRef, 0, len(v.listed))
	for ref := range v.listed {
		refs = append(refs, ref)
	}
	v.mu.Unlock()
	c := v.contents()
	instances := slices.Concat(c.services, v.entries(refs)) // members come after their parent
	v.sendAll(now, fullInventory(v.head, c.host, instances, c.skills, v.limit()))
}

// sendDelta sends what has changed since the last message.
func (v *inventory) sendDelta(now time.Time) {
	v.mu.Lock()
	removed := v.removed
	v.removed = nil
	var refs []wire.InstanceRef
	for ref := range v.changed {
		refs = append(refs, ref)
	}
	clear(v.changed)
	v.mu.Unlock()
	v.sendAll(now, deltas(v.head, v.entries(refs), removed, v.limit()))
}

// entries returns the entries of those instances that are still listed, sorted: a registry accepts the members of an extension
// only after it. The entries are read without the lock, and after the instances were taken out of changed: what changes later
// is marked again.
func (v *inventory) entries(refs []wire.InstanceRef) (list []wire.InventoryInstance) {
	slices.SortFunc(refs, wire.InstanceRef.Compare)
	for _, ref := range refs {
		v.mu.Lock()
		entry := v.listed[ref]
		v.mu.Unlock()
		if entry != nil {
			list = append(list, entry())
		}
	}
	return list
}

// sendAll numbers messages and sends them.
func (v *inventory) sendAll(now time.Time, messages []wire.Inventory) {
	for _, m := range messages {
		m.Seq = v.seq.Load() + 1
		err := v.publish(m)
		if v.sent(now, err); err != nil {
			v.requestFull() // the registries do not have what was in m
			return
		}
		v.seq.Store(m.Seq) // after the message: the answer to a ping must not name one that is sent later
	}
}

// sent records that a message was sent.
func (v *inventory) sent(now time.Time, err error) {
	v.lastSent = now
	interval := min(max(v.interval(), heartbeat.MinInterval), heartbeat.MaxInterval)
	v.heartbeatDue = now.Add(tenPercent(interval))
	if err != nil && !v.failing {
		v.log.Warn("cannot publish the inventory; it is published again until that succeeds", "error", err)
	}
	v.failing = err != nil
}
