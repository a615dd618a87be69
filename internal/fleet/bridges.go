package fleet

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// bridges is what the bridges have reported, and whether they answer.
type bridges struct {
	*core
	*modules
	byName map[string]*bridge
	skills map[string]map[string]wire.SkillEntry // by directory, by bridge
}

// bridge is the state of one bridge: its reports, and whether it answers pings.
type bridge struct {
	name   string
	host   *wire.Host
	skills []wire.SkillEntry
	seen   time.Time // last report, announcement or answer
	kept   int       // bytes counted of its reports

	inventory          Report
	refreshed          time.Time // last sign of life that counted for all instances
	inventoryRequested time.Time // last request for a full inventory
	behind             bool      // at the last ping, messages of its inventory had not arrived

	pings    pings
	answered bool // it has answered on its control subject before, so "no responders" means that it is gone
	leaving  bool // it does not answer; messages sent before are still being processed
	gone     bool
	reason   string    // why it is gone
	changed  time.Time // when it was last found to be gone, or up
}

// pings is when a bridge is pinged.
type pings struct {
	waiting  bool      // for an answer
	next     time.Time // no ping before
	pause    time.Duration
	timeouts int // in a row
}

const (
	maxBridges      = 10_000
	maxPingPause    = time.Minute // between pings of a bridge that is gone; others are pinged once a second
	maxPingTimeouts = 5           // timeouts after which a bridge that hangs counts as gone
)

// bridgeNamed returns the bridge that has reported under name, and adds it if necessary. Only the bridge itself may
// publish on that subject. It returns nil if there are too many bridges.
func (bs *bridges) bridgeNamed(name string, now time.Time) *bridge {
	if b := bs.seenBridge(name, now); b != nil {
		return b
	}
	if len(bs.byName) >= maxBridges {
		return nil
	}
	b := &bridge{name: name, seen: now}
	bs.byName[name] = b
	return b
}

// seenBridge records that something was received from a bridge or its instances. An announcement can contain any
// bridge name, so it does not add a bridge that has never reported.
func (bs *bridges) seenBridge(name string, now time.Time) *bridge {
	b := bs.byName[name]
	if b == nil {
		return nil
	}
	b.seen = now
	if b.gone {
		b.pings.next, b.pings.pause = time.Time{}, 0 // ping it again soon
	}
	return b
}

// keepReports updates the counted memory of a bridge's reports.
func (bs *bridges) keepReports(b *bridge) {
	size := b.reportSize()
	bs.size += size - b.kept
	b.kept = size
}

// reportSize is about the number of bytes stored of a bridge's reports.
func (b *bridge) reportSize() (sum int) {
	sum = b.inventory.Size()
	if b.host != nil {
		for _, id := range b.host.Extensions {
			sum += len(id) + 16
		}
		sum += problemsSize(b.host.Problems)
	}
	return sum + max(skillsSize(b.skills), b.inventory.pendingSkills())
}

func problemsSize(list []wire.HostProblem) (sum int) {
	for _, p := range list {
		sum += len(p.ID) + len(p.Path) + len(p.Kind) + len(p.Message) + 64
	}
	return sum
}

func skillsSize(list []wire.SkillEntry) (sum int) {
	for _, s := range list {
		sum += len(s.Name) + len(s.Dir) + len(s.Description) + len(s.Body) + 64
	}
	return sum
}

// reportGrows is about how many bytes more are stored of the reports of b after a message of a full inventory.
func (b *bridge) reportGrows(v *wire.Inventory) int {
	pending, has := b.inventory.pendingSkills(), skillsSize(b.skills)
	sum := max(has, pending+skillsSize(v.Skills)) - max(has, pending)
	if v.Host != nil {
		grows := problemsSize(v.Host.Problems)
		if b.host != nil {
			grows -= problemsSize(b.host.Problems)
		}
		sum += max(0, grows)
	}
	for _, i := range v.Instances {
		if ref := i.Ref(); !b.inventory.Lists(ref) {
			sum += len(ref.ID) + len(ref.Instance) + refRoom
		}
	}
	return sum
}

// checkBridge checks a bridge's name, which is a token of subjects and of a bucket key.
func checkBridge(name string) error {
	if name == "" || heartbeat.CheckInstance(name) != nil {
		return fmt.Errorf("bridge %.80q: want 1 to 64 of [A-Za-z0-9_-]", name)
	}
	return nil
}

// document is the value of host.<bridge>: its report, and whether it answers. was is the present document; its time
// is kept while state and run are the same.
func (b *bridge) document(was *wire.Host) *wire.Host {
	if b.host == nil {
		return nil
	}
	h := *b.host
	if h.State = b.state(); h.State == "" {
		return &h
	}
	if b.gone {
		h.Reason = b.reason
	}
	h.StateSince = b.changed.UTC().Truncate(time.Millisecond)
	if was != nil && was.State == h.State && was.Since.Equal(h.Since) && !was.StateSince.IsZero() {
		h.StateSince = was.StateSince
	}
	return &h
}

// state is whether the bridge answers: ready, lost, or "" if it has never answered pings, which a third-party bridge need not.
func (b *bridge) state() heartbeat.State {
	switch {
	case b.gone:
		return heartbeat.Lost
	case b.answered:
		return heartbeat.Ready
	}
	return ""
}

// pingBridges pings every bridge, if this replica leads.
func (bs *bridges) pingBridges(now time.Time) {
	if !bs.leads {
		return
	}
	for _, b := range bs.byName {
		if b.pings.waiting || now.Before(b.pings.next) {
			continue
		}
		b.pings.waiting = true
		bs.emit(PingBridge{b.name, b})
	}
}

// pinged handles the result of a ping. If there never was a responder, it may be a third-party bridge; then only the
// heartbeats of its instances count.
func (bs *bridges) pinged(b *bridge, r PingResult, now time.Time) {
	b.pings.waiting = false
	switch r.Outcome {
	case NoResponders:
		if !bs.mayReturn() {
			bs.pingFailed(b, "is gone", now)
		}
	case TimedOut:
		if !bs.fresh() {
			return
		}
		if b.pings.timeouts++; b.pings.timeouts >= maxPingTimeouts {
			bs.pingFailed(b, "does not answer", now)
		}
	case Answered: // any answer counts, even an error
		if b.gone { // its instances were marked lost
			bs.inventories.requestInventory(b, now)
		}
		if b.gone || !b.answered {
			b.changed = now
			bs.mark(HostKey(b.name), false)
			bs.markSkills(b)
		}
		b.answered, b.leaving, b.gone, b.seen = true, false, false, now
		b.pings.timeouts, b.pings.pause = 0, 0
		bs.inventories.checkSync(b, r.Answer, now)
	}
}

// pingFailed handles that a bridge does not answer, and pings it less and less often.
func (bs *bridges) pingFailed(b *bridge, reason string, now time.Time) {
	if b.answered && !b.gone && !b.leaving {
		b.leaving = true
		bs.emit(ConfirmGone{reason, b})
	}
	b.pings.pause = min(max(2*b.pings.pause, time.Second), maxPingPause)
	b.pings.next = now.Add(b.pings.pause)
}

// bridgeLost marks a bridge and all of its instances lost.
func (bs *bridges) bridgeLost(b *bridge, reason string, now time.Time) {
	if bs.hasStopped(b) {
		reason = wire.ReasonStopped
	}
	b.leaving, b.gone, b.changed, b.reason = false, true, now, reason
	bs.markInstancesLost(b, "bridge "+b.name+" "+reason, now)
	bs.mark(HostKey(b.name), true)
	bs.markSkills(b)
}

// hasStopped reports whether all instances of a bridge have been stopped, as they are when a bridge ends on purpose.
func (bs *bridges) hasStopped(b *bridge) bool {
	n := 0
	for x, instance := range bs.instancesAt(b.name) {
		if instance == "" {
			continue
		}
		if i, ok := bs.mon.Instance(x.id, instance); ok && i.State != heartbeat.Shutdown {
			return false
		}
		n++
	}
	return n > 0 || b.inventory.Synced() && len(b.inventory.Extensions()) == 0 // one without instances has nothing to lose
}

// markInstancesLost marks the instances of a bridge lost.
func (bs *bridges) markInstancesLost(b *bridge, reason string, now time.Time) {
	lost := 0
	for x, instance := range bs.instancesAt(b.name) {
		if instance == "" {
			continue
		}
		if c, ok := bs.mon.MarkLost(x.id, instance, reason, now); ok {
			bs.changed(c)
			bs.markUrgent(x.id)
			lost++
		}
	}
	if lost > 0 {
		bs.log(slog.LevelWarn, "bridge lost", "bridge", b.name, "reason", reason, "instances", lost)
	}
}

// sweepBridges removes bridges from which nothing was received for as long as extensions are remembered.
func (bs *bridges) sweepBridges(now time.Time) {
	keep := bs.cfg.Heartbeat.ForgetAfter
	if keep <= 0 { // never, which is about extensions: bridges with new names at each start would fill the registry
		keep = 24 * time.Hour
	}
	for name, b := range bs.byName {
		if now.Sub(b.seen) > keep {
			delete(bs.byName, name)
			bs.mark(HostKey(name), false)
			bs.replaceSkills(b, nil)
			bs.size -= b.kept
		}
	}
}

// bridgeRestarted handles a new run of a bridge, which is up although pings may not have reached it yet.
func (bs *bridges) bridgeRestarted(b *bridge, now time.Time) {
	b.leaving, b.pings.timeouts = false, 0
	if b.gone {
		b.gone, b.changed = false, now
		bs.markSkills(b)
	}
}
