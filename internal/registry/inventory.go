package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// requestInventoryEvery is the minimum interval of requests for one bridge's inventory.
const requestInventoryEvery = time.Second

// isInventory reports whether a message on a bridge's subject is an inventory message, and not a host report.
func isInventory(data []byte) bool {
	var head struct {
		Kind wire.InventoryKind `json:"kind"`
	}
	return json.Unmarshal(data, &head) == nil && head.Kind != ""
}

// handleInventory processes one inventory message of a bridge.
func (l *loop) handleInventory(name string, data []byte, now time.Time) {
	v, err := wire.ParseInventory(name, data)
	if err == nil {
		err = checkBridge(name)
	}
	if err == nil {
		err = l.makeRoom(len(data), now)
	}
	var b *bridge
	if err == nil {
		if b = l.bridgeNamed(name, now); b == nil {
			err = fmt.Errorf("the registry has reached its limit of %d bridges", maxBridges)
		}
	}
	if err != nil {
		l.refuse("inventory", name, err)
		return
	}
	u := b.inventory.Apply(v)
	for _, err := range u.Refused {
		l.refuse("inventory", name, err)
	}
	if v.Kind == wire.InventoryHeartbeat {
		l.traffic.Beats++
	}
	l.setHost(b, u, now)
	for n := range u.Changed {
		l.inventoryEntry(b, &u.Changed[n], now)
	}
	l.removeEntries(b, u, now)
	if u.Skills {
		l.replaceSkills(b, b.inventory.Skills())
	}
	if u.Alive {
		l.refreshInstances(b, now)
	}
	if u.Request {
		l.requestInventory(b, now)
	}
	l.keepReports(b)
}

// setHost updates what the catalog shows of the bridge itself.
func (l *loop) setHost(b *bridge, u fleet.Update, now time.Time) {
	if !u.Host && !u.Complete {
		return
	}
	r := &b.inventory
	h := &wire.Host{Bridge: b.name, Host: r.Host.Host, Version: r.Host.Version, Since: r.Host.Since,
		Problems: r.Host.Problems, ProblemsLeftOut: r.Host.ProblemsLeftOut}
	was := b.host
	switch {
	case u.Complete:
		h.Extensions = r.Extensions()
	case was != nil:
		h.Extensions, h.ExtensionsLeftOut = was.Extensions, was.ExtensionsLeftOut
	}
	b.host, b.reported = h, r.Synced()
	if u.Restarted || was != nil && !was.Since.Equal(h.Since) {
		b.leaving = false
		l.bridgeRestarted(b, now)
	}
	l.pub.mark(hostKey(b.name), false)
}

// inventoryEntry applies one entry of a bridge's inventory: the announcement and the state of an instance.
func (l *loop) inventoryEntry(b *bridge, i *wire.InventoryInstance, now time.Time) {
	a := i.Announce
	err := completeAnnounce(&a, l.cfg.Prefix)
	if err == nil {
		err = l.checkHolder(b, i.Ref())
	}
	if err != nil {
		l.refuse("inventory", i.ID, err)
		return
	}
	data, err := json.Marshal(a)
	if err != nil {
		l.refuse("inventory", i.ID, err)
		return
	}
	l.traffic.Announces++
	a.Capabilities.Tools, a.Capabilities.Hooks = nil, nil // the handshake returns them
	x := l.admit(&announced{Announce: a, at: now, size: keptSize(&a), digest: wire.AnnounceDigest(data)}, now)
	switch {
	case x == nil:
	case i.Instance == "":
		l.considerHandshake(x, "")
	default:
		l.observe(x, heartbeat.Message{ID: i.ID, Version: i.Version, Instance: i.Instance, State: i.State, Reason: i.Reason,
			Restarts: i.Restarts, Breaker: i.Breaker, IntervalMS: b.inventory.IntervalMS}, now)
	}
}

var errOtherHolder = errors.New("the instance belongs to another bridge or to a native service")

// checkHolder refuses an entry for an instance that another bridge lists, or that announces itself.
func (l *loop) checkHolder(b *bridge, ref wire.InstanceRef) error {
	x := l.exts[ref.ID]
	if ref.Instance == "" || x == nil {
		return nil
	}
	a := x.announcements[ref.Instance]
	if a == nil || a.implied || a.Bridge == b.name {
		return nil
	}
	if other := l.bridges[a.Bridge]; a.Bridge != "" && (other == nil || !other.inventory.Lists(ref)) {
		return nil
	}
	return errOtherHolder
}

// removeEntries removes what the bridge has removed or no longer lists. After a full inventory that includes instances
// that this replica has from the catalog only.
func (l *loop) removeEntries(b *bridge, u fleet.Update, now time.Time) {
	gone := u.Gone
	if u.Full {
		for x, instance := range l.instancesAt(b.name) {
			if ref := (wire.InstanceRef{ID: x.id, Instance: instance}); !b.inventory.Lists(ref) && !slices.Contains(u.Gone, ref) {
				gone = append(gone, ref)
			}
		}
	}
	for _, ref := range gone {
		if ref.Instance == "" && l.declaredElsewhere(ref) || l.checkHolder(b, ref) != nil {
			continue
		}
		l.removeInstance(ref.ID, ref.Instance, now)
	}
}

// declaredElsewhere reports whether another bridge has the manifest of a native service.
func (l *loop) declaredElsewhere(ref wire.InstanceRef) bool {
	for _, b := range l.bridges {
		if b.inventory.Lists(ref) {
			return true
		}
	}
	return false
}

// refreshInstances handles a sign of life of a bridge, which counts for all its instances.
func (l *loop) refreshInstances(b *bridge, now time.Time) {
	for _, ref := range b.inventory.Instances() {
		x := l.exts[ref.ID]
		if x == nil || ref.Instance == "" {
			continue
		}
		if c, ok := l.mon.Refresh(ref.ID, ref.Instance, now); ok {
			l.changed(c)
		}
		l.considerHandshake(x, ref.Instance)
		l.heartbeatOnHold(x, ref.Instance, now)
	}
}

// requestInventory requests the full inventory of a bridge, because messages of it were lost.
func (l *loop) requestInventory(b *bridge, now time.Time) {
	if now.Sub(b.inventoryRequested) < requestInventoryEvery {
		return
	}
	b.inventoryRequested = now
	q := request{nc: l.nc, subject: l.cfg.Prefix.Control(b.name), method: "inventory"}
	l.pings.start(func() {
		l.wg.Go(func() { // owned by the loop; ends with pingTimeout at the latest
			_, err := q.send(l.ctx, pingTimeout)
			l.report(func(l *loop) {
				l.pings.finish()
				if err != nil {
					l.log.Debug("cannot request an inventory", "bridge", b.name, "error", err)
				}
			})
		})
	})
}

// checkSync compares the answer to a ping with the inventory of a bridge. Two answers in a row that name messages which
// have not arrived mean that they were lost; after one, they may still be on their way.
func (l *loop) checkSync(b *bridge, answer json.RawMessage, now time.Time) (sendsInventory bool) {
	var have struct {
		Run string `json:"run"`
		Seq uint64 `json:"seq"`
	}
	if json.Unmarshal(answer, &have) != nil || have.Seq == 0 {
		return false
	}
	behind := b.inventory.Behind(have.Run, have.Seq)
	if behind && b.behind {
		l.requestInventory(b, now)
	}
	b.behind = behind
	return true
}
