package fleet

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Fleet is the state of the mesh as one registry has received it. Each method that takes a time is an event; what follows from it is in
// Effects and Marks, and in the documents. All replicas of the registry have the same Fleet.
type Fleet struct {
	*core
	*modules
	ticks uint64
}

// New returns an empty Fleet that restores from catalog.
func New(cfg Config, catalog Catalog) *Fleet {
	c := &core{cfg: cfg, catalog: catalog, mon: liveness.NewMonitor(cfg.Heartbeat), marks: map[string]bool{},
		reconsider: map[string]bool{}, unrestored: map[string]bool{}, store: newStore(cfg.Room)}
	m := &modules{}
	m.natives = &natives{core: c, modules: m, unannounced: map[string]*unannounced{}}
	m.bridges = &bridges{core: c, modules: m, byName: map[string]*bridge{}, skills: map[string]map[string]wire.SkillEntry{}}
	m.inventories = &inventories{core: c, modules: m}
	m.probes = &probes{core: c, modules: m, byInstance: map[instanceKey]*probe{}}
	m.handshakes = &handshakes{core: c, modules: m}
	m.restores = &restores{core: c, modules: m}
	return &Fleet{core: c, modules: m}
}

// Control processes a message on P.registry.<verb>.<name>.
func (f *Fleet) Control(verb, name string, data []byte, now time.Time) {
	f.now = now
	switch verb {
	case "heartbeat":
		f.natives.handleHeartbeat(name, data, now)
	case "announce":
		f.natives.handleAnnouncement(name, data, now)
	case "shutdown":
		f.natives.handleShutdown(name, data, now)
	case "suspect":
		f.traffic.Suspects++
		f.probes.suspect(name, data, now)
	case "host":
		f.inventories.handleInventory(name, data, now)
	}
}

// RequestAll requests announcements from the whole mesh, at most every 10 s, or at once if messages were missed while the
// registry was not connected.
func (f *Fleet) RequestAll(atOnce bool, now time.Time) {
	f.now = now
	if atOnce {
		f.natives.lastRequest, f.missed = time.Time{}, now
	}
	f.natives.requestAnnouncements(now)
}

// Tick does periodic work. It is called twice a second.
func (f *Fleet) Tick(now time.Time) {
	f.now = now
	f.ticks++
	if f.ticks%2 == 0 {
		f.bridges.pingBridges(now)
		f.probes.retryHolds(now)
	}
	if f.ticks%sweepTicks == 0 {
		f.natives.sweepExtensions(now)
		f.natives.sweepUnannounced(now)
		f.bridges.sweepBridges(now)
	}
}

// Verified records that this replica has received a self-check that it sent at sent. Missing heartbeats are evaluated up
// to that time, unless evaluate is false.
func (f *Fleet) Verified(sent time.Time, evaluate bool, now time.Time) {
	f.now, f.verified = now, now
	if !evaluate {
		return
	}
	for _, c := range f.mon.Expire(sent) {
		f.changed(c)
	}
}

// ListeningGap records that messages may have been missed until now.
func (f *Fleet) ListeningGap(now time.Time) { f.mon.ListeningGap(now.Add(-1), now) }

// SetLimits sets what documents may take. Tools that were cut to a smaller limit are not requested again, except by the next
// leader.
func (f *Fleet) SetLimits(l Limits) { f.limits = l }

// Elected makes this replica the leader, and everything in the catalog is to be restored. The catalog contains all that
// earlier leaders wrote.
func (f *Fleet) Elected(now time.Time) {
	f.now, f.leads = now, true
	f.catalog.Each(func(key string, _ Record) {
		if kind, id, _ := strings.Cut(key, "."); kind == wire.KindSpec || kind == wire.KindState {
			f.unrestored[id] = true
		}
	})
	for id := range f.exts {
		f.unrestored[id] = true
	}
	f.restores.restoreBridges(now)
	f.markAll()
}

// Deposed ends the leadership of this replica.
func (f *Fleet) Deposed(now time.Time) {
	f.now, f.leads = now, false
	f.probes.dropHolds(now)
}

// CatalogChanged processes that another program has changed a key of the catalog.
func (f *Fleet) CatalogChanged(key string, now time.Time) {
	f.now = now
	if f.leads {
		f.mark(key, false)
	} else if kind, id, _ := strings.Cut(key, "."); kind == wire.KindSpec {
		f.unrestored[id] = true
	}
}

// Pinged processes the result of PingBridge.
func (f *Fleet) Pinged(p PingBridge, r PingResult, now time.Time) {
	f.now = now
	f.bridges.pinged(p.bridge, r, now)
}

// BridgeGone processes that nothing of a bridge was among the messages sent before ConfirmGone.
func (f *Fleet) BridgeGone(g ConfirmGone, now time.Time) {
	f.now = now
	if g.bridge.leaving {
		f.bridges.bridgeLost(g.bridge, g.Reason, now)
	}
}

// Unanswered processes that an instance has not answered a ping yet.
func (f *Fleet) Unanswered(p Ping, now time.Time) {
	f.now = now
	f.probes.showNoAnswer(p.probe, p.own)
}

// Probed processes the end of a ping. reason is "" if there was an answer; with err the result is unknown.
func (f *Fleet) Probed(p Ping, reason string, err error, now time.Time) {
	f.now = now
	f.probes.probed(p.probe, p.own, reason, err, now)
}

// HandshakeDone processes the end of a handshake.
func (f *Fleet) HandshakeDone(h Handshake, o Offer, now time.Time) {
	f.now = now
	f.handshakes.handshakeDone(h.ext, h.handshake, o)
}

// Settle finishes the events since the last call: it restores some extensions and chooses the specs of changed ones. It
// reports whether there is more to do.
func (f *Fleet) Settle(now time.Time) (more bool) {
	f.now = now
	f.restores.restoreSome()
	if again := f.reconsider; len(again) > 0 {
		f.reconsider = map[string]bool{} // a Go map that was large once stays slow to iterate over
		for id := range again {
			f.choose(id)
		}
	}
	return len(f.reconsider) > 0 || f.catalog.Synced() && len(f.unrestored) > 0
}

// Take returns the marked keys, with true for those to be written at once, and the effects since the last call.
func (f *Fleet) Take() (marks map[string]bool, effects []Effect) {
	marks, effects = f.marks, f.effects
	f.marks, f.effects = map[string]bool{}, nil
	return marks, effects
}

// Held reports whether the document of a key cannot be written yet. Specs wait until all of them are restored, because
// names depend on every extension that claims them. A state waits while it cannot be restored because the catalog has a
// gap; otherwise instances that are not restored yet would be deleted from it.
func (f *Fleet) Held(key string) bool {
	switch kind, id, _ := strings.Cut(key, "."); kind {
	case wire.KindSpec:
		return len(f.unrestored) > 0
	case wire.KindState:
		return !f.catalog.Synced() && f.unrestored[id]
	}
	return false
}

// Document is the value that a key should have, nil if the key should not exist; have is its present value.
func (f *Fleet) Document(key string, have []byte, now time.Time) ([]byte, error) {
	f.now = now
	kind, name, _ := strings.Cut(key, ".")
	if kind == wire.KindSpec || kind == wire.KindState {
		f.restores.restore(name)
	}
	x := f.exts[name]
	health, known := f.mon.Extension(name)
	switch {
	case kind == wire.KindSpec && x != nil:
		if s := x.spec(health, &f.names); s != nil {
			return marshalSpec(s, x.cut(), f.limits.Spec)
		}
	case kind == wire.KindState && known && x != nil:
		was := new(wire.StateDoc)
		if have == nil || json.Unmarshal(have, was) != nil {
			was = nil
		}
		return marshalState(x.state(health, was), f.limits.Value)
	case kind == wire.KindHost:
		if b := f.bridges.byName[name]; b != nil && b.host != nil {
			var was wire.Host // an unreadable document counts as empty
			_ = json.Unmarshal(have, &was)
			return plainjson.Marshal(b.document(&was))
		}
	case kind == wire.KindSkill:
		if s := skill(f.bridges.present(f.bridges.skills[name])); s != nil {
			return plainjson.Marshal(s)
		}
	}
	return nil, nil
}

// choose selects the content of an extension's spec and registers the names of its tools. Other extensions with names
// that change by it are written in the same batch.
func (f *Fleet) choose(id string) {
	if f.leads {
		f.restores.restore(id)
	}
	x := f.exts[id]
	if x == nil {
		return
	}
	health, _ := f.mon.Extension(id)
	changed := f.leads && x.choose(health) // a standby shows the leader's choice
	if changed {
		f.nameTools(x)
		f.markUrgent(id) // followers should see the state together with the tools
	}
	f.mark(SpecKey(id), changed)
}

// markAll marks every key that exists or should exist.
func (f *Fleet) markAll() {
	f.catalog.Each(func(key string, _ Record) {
		switch kind, _, _ := strings.Cut(key, "."); kind {
		case wire.KindSpec, wire.KindState, wire.KindHost, wire.KindSkill:
			f.mark(key, false)
		}
	})
	for id := range f.exts {
		f.mark(SpecKey(id), false)
		f.mark(StateKey(id), false)
	}
	for name := range f.bridges.byName {
		f.mark(HostKey(name), false)
	}
	for dir := range f.bridges.skills {
		f.mark(SkillKey(dir), false)
	}
}

// Mesh is the mesh in numbers, as a registry's status shows it.
type Mesh struct {
	Extensions map[heartbeat.State]int `json:"extensions"`
	Instances  map[heartbeat.State]int `json:"instances"`
	Hosts      map[heartbeat.State]int `json:"hosts"` // bridges by state: ready, lost, shutdown, or "" for those that never answered a ping
	Tools      int                     `json:"tools"`
	Bridges    int                     `json:"bridges"`
	Skills     int                     `json:"skills"`
}

// Summary is the fleet in numbers.
type Summary struct {
	Mesh
	Listening time.Time // heartbeats missing before that are not evaluated
	Counters  Counters
}

// Summary returns the fleet in numbers.
func (f *Fleet) Summary() Summary {
	s := Summary{Mesh: Mesh{Tools: f.names.Len(), Bridges: len(f.bridges.byName), Skills: len(f.bridges.skills)},
		Listening: f.mon.Listening(), Counters: f.traffic}
	s.Extensions, s.Instances = f.mon.Counts()
	s.Hosts = map[heartbeat.State]int{}
	for _, b := range f.bridges.byName {
		if b.gone && b.reason == wire.ReasonStopped {
			s.Hosts[heartbeat.Shutdown]++
		} else {
			s.Hosts[b.state()]++
		}
	}
	return s
}

// Names are the registered names of the tools.
func (f *Fleet) Names() *wire.Names { return &f.names }
