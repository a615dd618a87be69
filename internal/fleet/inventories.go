package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// maxHostSize is the size of the lists of instances with which a bridge's document still lists its extensions.
const maxHostSize = 512 << 10

// refreshEvery is the minimum interval in which deltas count as signs of life of all instances of their bridge: a bridge
// that starts a thousand instances sends many.
const refreshEvery = time.Second

// requestInventoryEvery is the minimum interval of requests for one bridge's inventory.
const requestInventoryEvery = time.Second

// inventories processes the inventories of bridges.
type inventories struct {
	*core
	*modules
}

// handleInventory processes one inventory message of a bridge.
func (iv *inventories) handleInventory(name string, data []byte, now time.Time) {
	v, err := wire.ParseInventory(name, data)
	if err == nil {
		err = checkBridge(name)
	}
	if err == nil {
		if grows := iv.grows(&v, len(data)); grows > 0 {
			err = iv.makeRoom(grows, now)
		}
	}
	var b *bridge
	if err == nil {
		if b = iv.bridges.bridgeNamed(name, now); b == nil {
			err = fmt.Errorf("the registry has reached its limit of %d bridges", maxBridges)
		}
	}
	if err != nil {
		iv.refuse("inventory", name, err)
		if b := iv.bridges.byName[name]; b != nil && v.Kind != wire.InventoryDelta { // the next one would be refused, too
			b.inventoryRequested = now.Add(refusedPause)
		}
		return
	}
	u := b.inventory.Apply(v)
	for _, err := range u.Refused {
		iv.refuse("inventory", name, err)
	}
	if v.Kind == wire.InventoryHeartbeat {
		iv.traffic.Heartbeats++
	}
	iv.setHost(b, u, now)
	for n := range u.Changed {
		iv.inventoryEntry(b, &u.Changed[n], now)
	}
	iv.removeEntries(b, u, now)
	if u.Skills {
		iv.bridges.replaceSkills(b, b.inventory.Skills())
	}
	if u.Alive && (v.Kind == wire.InventoryHeartbeat || now.Sub(b.refreshed) >= refreshEvery) {
		iv.refreshInstances(b, now)
	}
	if u.Request {
		iv.requestInventory(b, now)
	}
	iv.bridges.keepReports(b)
}

// grows is about how many bytes more an inventory message of this size makes the registry store. Without memory, the registry
// must still accept heartbeats, and changes of what it has stored.
func (iv *inventories) grows(v *wire.Inventory, size int) int {
	b := iv.bridges.byName[v.Bridge]
	switch {
	case v.Kind == wire.InventoryHeartbeat:
		return 0
	case b == nil:
		return size
	case v.Kind == wire.InventoryFull: // admit makes room for the announcements
		return b.reportGrows(v)
	}
	const entry = 1 << 10 // a change of a state is much smaller
	listed := !slices.ContainsFunc(v.Instances, func(i wire.InventoryInstance) bool { return !b.inventory.Lists(i.Ref()) })
	if listed && v.Host == nil && len(v.Skills) == 0 && size <= entry*(len(v.Instances)+len(v.Removed)+1) {
		return 0
	}
	return size
}

// setHost updates what the catalog shows of the bridge itself.
func (iv *inventories) setHost(b *bridge, u Update, now time.Time) {
	if !u.Host && !u.Complete {
		return
	}
	r := &b.inventory
	h := &wire.Host{Bridge: b.name, Host: r.Host.Host, Version: r.Host.Version, Since: r.Host.Since,
		Problems: r.Host.Problems, ProblemsLeftOut: r.Host.ProblemsLeftOut}
	was := b.host
	switch {
	case u.Complete:
		if h.Extensions = r.Extensions(); r.Size() > maxHostSize {
			h.Extensions, h.ExtensionsLeftOut = nil, len(h.Extensions)
		}
	case was != nil:
		h.Extensions, h.ExtensionsLeftOut = was.Extensions, was.ExtensionsLeftOut
	}
	b.host = h
	if u.Restarted || was != nil && !was.Since.Equal(h.Since) {
		iv.bridges.bridgeRestarted(b, now)
	}
	iv.mark(HostKey(b.name), false)
}

// inventoryEntry applies one entry of a bridge's inventory: the announcement and the state of an instance.
func (iv *inventories) inventoryEntry(b *bridge, i *wire.InventoryInstance, now time.Time) {
	a := i.Announce
	err := completeAnnounce(&a, iv.cfg.Prefix)
	if err == nil {
		err = iv.checkHolder(b, i.Ref())
	}
	if err != nil {
		iv.refuse("inventory", i.ID, err)
		return
	}
	data, err := json.Marshal(a)
	if err != nil {
		iv.refuse("inventory", i.ID, err)
		return
	}
	iv.traffic.Announces++
	if iv.isOutranked(b, &a) || i.Instance == "" && iv.announcesItself(i.ID) {
		return
	}
	x := iv.natives.admit(&announced{Announce: a, at: now, size: keptSize(&a), digest: wire.AnnounceDigest(data), from: b.name}, now)
	if x == nil { // the state of an instance whose earlier announcement is stored counts nevertheless
		if known := iv.exts[i.ID]; known != nil && known.announcements[i.Instance] != nil && known.announcements[i.Instance].from == b.name {
			x = known
		}
	}
	switch {
	case x == nil:
	case i.Instance == "":
		iv.handshakes.considerHandshake(x, "")
	default:
		iv.natives.observe(x, heartbeat.Message{ID: i.ID, Version: i.Version, Instance: i.Instance, State: i.State, Reason: i.Reason,
			Restarts: i.Restarts, Breaker: i.Breaker, IntervalMS: b.inventory.IntervalMS}, now)
	}
}

// isOutranked reports whether the manifest that another bridge lists for the same service counts instead: because of its higher
// version, or with equal versions because of its higher hash. The order in which inventories arrive then makes no difference.
func (iv *inventories) isOutranked(b *bridge, a *wire.Announce) bool {
	x := iv.exts[a.ID]
	if x == nil || a.Instance != "" || x.announcements[""] == nil {
		return false
	}
	have := x.announcements[""]
	other := iv.bridges.byName[have.from]
	return other != nil && other != b && !other.gone && other.inventory.Lists(wire.InstanceRef{ID: a.ID}) &&
		cmp.Or(compareVersions(have.Version, a.Version), cmp.Compare(have.ManifestHash, a.ManifestHash)) > 0
}

// announcesItself reports whether a running service without instance names has sent an announcement, which then counts
// instead of a manifest.
func (iv *inventories) announcesItself(id string) bool {
	x := iv.exts[id]
	if x == nil {
		return false
	}
	a := x.announcements[""]
	i, known := iv.mon.Instance(id, "")
	return known && i.State != heartbeat.Lost && i.State != heartbeat.Shutdown && a != nil && a.from == "" && !a.implied
}

var errOtherHolder = errors.New("the instance belongs to another bridge or to a native service")

// checkHolder refuses an entry for an instance that another bridge lists, or that announces itself.
func (iv *inventories) checkHolder(b *bridge, ref wire.InstanceRef) error {
	x := iv.exts[ref.ID]
	if ref.Instance == "" || x == nil {
		return nil
	}
	a := x.announcements[ref.Instance]
	if a == nil || a.implied || a.from == b.name {
		return nil
	}
	if other := iv.bridges.byName[a.from]; a.from != "" && (other == nil || !other.inventory.Lists(ref)) {
		return nil
	}
	return errOtherHolder
}

// checkNative refuses a message about a single instance that a bridge lists: the bridge reports all that there is to
// report.
func (iv *inventories) checkNative(id, instance string) error {
	if b := iv.lister(id, instance); b != nil {
		return fmt.Errorf("instance %s is in the inventory of bridge %s", instance, b.name)
	}
	return nil
}

// lister is the bridge that lists an instance; nil if there is none.
func (iv *inventories) lister(id, instance string) *bridge {
	x := iv.exts[id]
	if x == nil || instance == "" || x.announcements[instance] == nil {
		return nil
	}
	if b := iv.bridges.byName[x.announcements[instance].from]; b != nil && b.inventory.Lists(wire.InstanceRef{ID: id, Instance: instance}) {
		return b
	}
	return nil
}

// forget reports whether an operator may remove an instance that a bridge lists: if the bridge is gone. If the bridge comes
// back, its full inventory is needed. Only the leader pings bridges; the others read its result in the catalog.
func (iv *inventories) forget(id, instance string) bool {
	b := iv.lister(id, instance)
	if b == nil || !b.gone && (iv.leads || !iv.shownLost(b.name)) {
		return false
	}
	b.inventory.Lose()
	iv.bridges.keepReports(b)
	return true
}

// shownLost reports whether the catalog shows a bridge as lost.
func (iv *inventories) shownLost(bridge string) bool {
	var h wire.Host
	return json.Unmarshal(iv.get(HostKey(bridge)), &h) == nil && h.State == heartbeat.Lost
}

// removeEntries removes what the bridge has removed or no longer lists. After a full inventory that includes instances
// that this replica has from the catalog only.
func (iv *inventories) removeEntries(b *bridge, u Update, now time.Time) {
	gone := u.Gone
	if u.Full {
		for x, instance := range iv.instancesAt(b.name) {
			if ref := (wire.InstanceRef{ID: x.id, Instance: instance}); !b.inventory.Lists(ref) && !slices.Contains(u.Gone, ref) {
				gone = append(gone, ref)
			}
		}
		iv.removeUndeclared(now)
	}
	for _, ref := range gone {
		var other *bridge
		if ref.Instance == "" { // a manifest, which several bridges can have
			other = iv.declaredElsewhere(ref)
		}
		switch {
		case iv.checkHolder(b, ref) != nil, ref.Instance == "" && iv.announcesItself(ref.ID):
		case ref.Instance != "" || other == nil:
			iv.natives.removeInstance(ref.ID, ref.Instance, now)
		case iv.exts[ref.ID] != nil && iv.exts[ref.ID].announcements[""] != nil && iv.exts[ref.ID].announcements[""].from == b.name:
			iv.requestInventory(other, now) // for its manifest
		}
	}
}

// removeUndeclared removes extensions that this replica has from the catalog only, and that have no instance: they were
// manifests of services, and no bridge lists these any more. The leader that was to remove them has lost its lease before.
func (iv *inventories) removeUndeclared(now time.Time) {
	if !iv.complete() {
		return
	}
	for id, x := range iv.exts {
		if len(x.announcements) == 0 && iv.empty(id) {
			iv.natives.removeInstance(id, "", now)
		}
	}
}

// complete reports whether the inventory of every bridge has been received.
func (iv *inventories) complete() bool {
	for _, b := range iv.bridges.byName {
		if !b.inventory.Synced() {
			return false
		}
	}
	return len(iv.bridges.byName) > 0
}

// declaredElsewhere returns a bridge that has the manifest of a native service, nil if there is none.
func (iv *inventories) declaredElsewhere(ref wire.InstanceRef) *bridge {
	for _, b := range iv.bridges.byName {
		if b.inventory.Lists(ref) {
			return b
		}
	}
	return nil
}

// refreshInstances handles a sign of life of a bridge, which counts for all its instances.
func (iv *inventories) refreshInstances(b *bridge, now time.Time) {
	b.refreshed = now
	missing := false // an instance that was dropped while nothing came from the bridge, or was refused
	for ref := range b.inventory.All() {
		x := iv.exts[ref.ID]
		if ref.Instance == "" || iv.checkHolder(b, ref) != nil {
			continue
		}
		if _, known := iv.mon.Instance(ref.ID, ref.Instance); x == nil || !known {
			missing = true
			continue
		}
		if c, ok := iv.mon.Refresh(ref.ID, ref.Instance, now); ok {
			iv.changed(c)
		}
		iv.handshakes.considerHandshake(x, ref.Instance)
		iv.probes.heartbeatOnHold(x, ref.Instance, now)
	}
	if missing && iv.leads && now.Sub(b.inventoryRequested) > requestMissingEvery {
		iv.requestInventory(b, now)
	}
}

// requestMissingEvery is how often the full inventory of a bridge is requested because of instances that are missing here.
const requestMissingEvery = time.Minute

// refusedPause is how long no inventory is requested from a bridge after one of its messages was refused.
const refusedPause = time.Minute

// requestInventory requests the full inventory of a bridge, because messages of it were lost.
func (iv *inventories) requestInventory(b *bridge, now time.Time) {
	if now.Sub(b.inventoryRequested) < requestInventoryEvery {
		return
	}
	b.inventoryRequested = now
	iv.emit(RequestInventory{b.name})
}

// checkSync compares the answer to a ping with the inventory of a bridge. Two answers in a row that name messages which
// have not arrived mean that they were lost; after one, they may still be on their way.
func (iv *inventories) checkSync(b *bridge, answer json.RawMessage, now time.Time) {
	var have struct {
		Run string `json:"run"`
		Seq uint64 `json:"seq"`
	}
	behind := json.Unmarshal(answer, &have) == nil && b.inventory.Behind(have.Run, have.Seq)
	if behind && b.behind {
		iv.requestInventory(b, now)
	}
	b.behind = behind
}
