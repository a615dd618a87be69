package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// How heartbeats of unannounced ids are handled.
const (
	unannouncedGrace    = time.Second      // from the first heartbeat to an implied announcement
	maxUnannouncedGrace = 10 * time.Second // the same while announcements keep arriving
	maxUnannounced      = 10_000
	requestEvery        = 10 * time.Second
	maxRequests         = 3 // per instance without an announcement
)

// natives processes the messages of single instances.
type natives struct {
	*core
	*modules
	unannounced      map[string]*unannounced // ids with heartbeats and without an announcement
	lastRequest      time.Time               // last announce request
	lastAnnouncement time.Time               // last announcement received
}

// handleHeartbeat processes one heartbeat.
func (na *natives) handleHeartbeat(id string, data []byte, now time.Time) {
	b, err := heartbeat.Parse(data)
	if err == nil && b.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", b.ID, id)
	}
	if err == nil {
		err = checkHeartbeatID(id)
	}
	if err != nil {
		na.refuseHeartbeat(id, b.Instance, err, now)
		return
	}
	if err := na.inventories.checkNative(id, b.Instance); err != nil { // not from the instance itself
		na.refuse("beat", id, err)
		return
	}
	x := na.exts[id]
	if b.Instance == "" && !na.mayOmitInstance(id) {
		na.refuseHeartbeat(id, "", errNoInstance, now)
		na.requestFrom(x, "", now)
		return
	}
	na.traffic.heartbeat(b, now)
	if x != nil && x.refusedHeartbeats.accept(b.Instance, now) {
		na.mark(SpecKey(id), false)
	}
	if x == nil || len(x.announcements) == 0 && x.shown != nil && x.shown.implied { // the latter is from the catalog
		if fresh := na.handleUnannounced(b, now); fresh != nil {
			x = fresh
		}
		if x == nil {
			return
		}
	} else if a := x.announcements[b.Instance]; a != nil && a.implied && b.Version != "" && compareVersions(b.Version, a.Version) > 0 {
		upgraded := *a
		upgraded.Version, upgraded.at = b.Version, now
		if x = na.admit(&upgraded, now); x == nil {
			return
		}
	}
	na.observe(x, b, now)
	na.checkAnnouncement(x, &b, now)
}

// observe applies the state of an instance of x, as reported by a heartbeat or an inventory.
func (na *natives) observe(x *extension, b heartbeat.Message, now time.Time) {
	c, changed := na.mon.Observe(b, now)
	if c.NewRun {
		na.instanceRestarted(x, b.Instance)
	}
	if changed {
		na.changed(c)
	}
	na.handshakes.considerHandshake(x, b.Instance)
	na.probes.heartbeatOnHold(x, b.Instance, now)
}

// heartbeat counts a heartbeat and averages its delay.
func (t *Counters) heartbeat(b heartbeat.Message, now time.Time) {
	t.Heartbeats++
	if !b.TS.IsZero() {
		lag := float64(now.Sub(b.TS)) / float64(time.Millisecond)
		t.LagMS += (lag - t.LagMS) / 100
	}
}

func checkHeartbeatID(id string) error {
	parent := ""
	if first, _, dotted := strings.Cut(id, "."); dotted {
		parent = first
	}
	return wire.CheckExtension(id, parent)
}

// handleUnannounced processes a heartbeat of an id without an announcement. All extensions are requested to announce.
// A service that still sends only heartbeats is assumed to serve its tools under the prefix of its refused announcement, or
// else the mesh's own.
func (na *natives) handleUnannounced(b heartbeat.Message, now time.Time) *extension {
	s := na.unannounced[b.ID]
	if s == nil {
		if len(na.unannounced) < maxUnannounced && na.requestAnnouncements(now) { // else with its next heartbeat
			na.unannounced[strings.Clone(b.ID)] = &unannounced{since: now, seen: now, requests: announceRequests{round: na.lastRequest, times: 1}}
		}
		return nil
	}
	s.seen = now
	waited := now.Sub(s.since)
	coming := now.Sub(na.lastAnnouncement) < unannouncedGrace && waited < maxUnannouncedGrace // its own announcement may be among them
	if waited < unannouncedGrace || coming {
		return nil
	}
	if strings.Contains(b.ID, ".") { // a member needs its parent, which a heartbeat does not contain
		na.requestFor(&s.requests, now)
		return nil
	}
	a := wire.Announce{ID: b.ID, Version: b.Version, Instance: b.Instance, SubjectPrefix: cmp.Or(s.prefix, string(na.cfg.Prefix)),
		Transport: "nats", Dialect: "ext"}
	if a.Version == "" {
		a.Version = "0.0.0"
	}
	x := na.admit(&announced{Announce: a, at: now, implied: true}, now)
	if x != nil && s.refused.reason != "" {
		x.refusedAnnouncements = s.refused
	}
	return x
}

// requestAnnouncements requests announcements from all extensions, at most every requestEvery. It reports whether it has
// just done so.
func (na *natives) requestAnnouncements(now time.Time) bool {
	if since := now.Sub(na.lastRequest); since < requestEvery {
		return since < unannouncedGrace/2
	}
	na.lastRequest = now
	na.emit(RequestAnnouncements{})
	return true
}

// unannounced is an id that sends heartbeats, and of which no announcement was accepted.
type unannounced struct {
	since    time.Time
	seen     time.Time // the last heartbeat
	prefix   string    // of the last announcement, which was refused; "" if there was none
	refused  refusal   // of its announcements
	requests announceRequests
}

// announceRequests limits how often one instance can cause requests that all extensions announce. Some
// never answer them, or with something else than their heartbeats contain.
type announceRequests struct {
	times      int
	round      time.Time // the last request that is counted, or older than the cause
	unanswered bool      // all were sent, and the instance still has no announcement
}

// requestFor requests announcements from all because of one instance, up to maxRequests times. A request
// caused by any of them counts for all of them; otherwise 1,000 unresponsive ones would keep the whole fleet
// announcing for 15 minutes.
func (na *natives) requestFor(a *announceRequests, now time.Time) {
	switch {
	case a.round.IsZero(): // requests before the cause do not count
		a.round = na.lastRequest
	case !a.round.Equal(na.lastRequest):
		a.times, a.round = a.times+1, na.lastRequest
	}
	if a.times >= maxRequests || !na.requestAnnouncements(now) || a.round.Equal(na.lastRequest) {
		return
	}
	a.times, a.round = a.times+1, na.lastRequest
}

// checkAnnouncement requests announcements if an instance of a known extension sends heartbeats without having
// announced itself, or with the version or the digest of another announcement. This replica may have missed the announcement.
func (na *natives) checkAnnouncement(x *extension, b *heartbeat.Message, now time.Time) {
	have := x.announcements[b.Instance]
	replaced := have != nil && have.from == "" && b.Version != "" && b.Version != have.Version
	if have == nil {
		have = x.announcements[""]
	}
	if have != nil && !have.implied && !replaced && (b.Announced == "" || b.Announced == have.digest) {
		delete(x.requests, b.Instance)
		return
	}
	if _, known := na.mon.Instance(x.id, b.Instance); !known {
		return
	}
	if r := x.requests[b.Instance]; have == nil && r != nil && r.times >= maxRequests && !r.unanswered {
		r.unanswered = true
		na.mark(SpecKey(x.id), false)
	}
	na.requestFrom(x, b.Instance, now)
}

// requestFrom requests announcements because of an instance of x that has not sent its own.
func (na *natives) requestFrom(x *extension, instance string, now time.Time) {
	a := x.requests[instance]
	if a == nil {
		if len(x.requests) >= 2*maxAnnouncements { // the monitor drops instances without an event to make room for new ones
			na.forgetUnknown(x)
		}
		a = new(announceRequests)
		x.requests[strings.Clone(instance)] = a
	}
	na.requestFor(a, now)
}

var errNoInstance = errors.New("the message has no instance, and the instances of this extension have names")

// mayOmitInstance reports whether a heartbeat or shutdown notice without an instance is accepted. It is if the
// extension was announced without one, or only sends heartbeats. If this replica has received no announcement, the
// catalog decides.
func (na *natives) mayOmitInstance(id string) bool {
	x := na.exts[id]
	if x == nil || x.announcements[""] != nil {
		return true
	}
	for _, a := range x.announcements {
		return a.implied // either all announcements are implied or none
	}
	var d wire.StateDoc
	if value := na.get(StateKey(id)); value != nil && json.Unmarshal(value, &d) != nil {
		return false
	}
	unnamed := func(i wire.InstanceState) bool { return i.Instance == "" }
	return len(d.Instances) == 0 || slices.ContainsFunc(d.Instances, unnamed)
}

// handleAnnouncement processes the announcement of one instance.
func (na *natives) handleAnnouncement(id string, data []byte, now time.Time) {
	a, err := parseAnnounce(id, data, na.cfg.Prefix)
	if err != nil {
		na.refuseAnnouncement(id, a.Instance, err, now)
		return
	}
	if err := na.inventories.checkNative(id, a.Instance); err != nil { // not from the instance itself
		na.refuse("announce", id, err)
		return
	}
	na.traffic.Announces++
	na.lastAnnouncement = now
	if x := na.admit(&announced{Announce: a, at: now, size: keptSize(&a), digest: wire.AnnounceDigest(data)}, now); x != nil {
		na.handshakes.considerHandshake(x, a.Instance)
	} else if s := na.unannounced[id]; s != nil {
		s.prefix = a.SubjectPrefix
	}
}

// handleShutdown processes the shutdown notice of one instance.
func (na *natives) handleShutdown(id string, data []byte, now time.Time) {
	var g wire.ShutdownNotice
	err := json.Unmarshal(data, &g)
	if len(data) > heartbeat.MaxSize {
		err = fmt.Errorf("a shutdown notice of %d bytes is over the limit of %d", len(data), heartbeat.MaxSize)
	}
	if err == nil && g.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", g.ID, id)
	}
	if err == nil && g.Instance == "" && !na.mayOmitInstance(id) {
		err = errNoInstance
	}
	if err == nil && (g.Reason != wire.ReasonRemoved || !na.inventories.forget(id, g.Instance)) {
		err = na.inventories.checkNative(id, g.Instance)
	}
	if err != nil {
		na.refuse("shutdown", id, err)
		return
	}
	if g.Reason == wire.ReasonRemoved {
		na.removeInstance(id, g.Instance, now)
	} else if c, ok := na.mon.Deregister(id, g.Instance, g.Reason, now); ok {
		na.changed(c)
	}
}

// removeInstance removes an instance that will not return, or with "" the manifest of a service. The extension is
// removed with the last of them.
func (na *natives) removeInstance(id, instance string, now time.Time) {
	x := na.exts[id]
	var c liveness.Change
	var ok bool
	switch {
	case instance == "" && x != nil && na.hasNamedInstances(x):
		na.manifestWithdrawn(x) // the manifest was removed; the service that it described is still there
	case instance == "":
		c, ok = na.mon.Forget(id)
	default:
		if c, ok = na.mon.Remove(id, instance, now); ok && na.empty(id) {
			na.changed(c)
			c, ok = na.mon.Forget(id)
		}
	}
	if ok {
		na.changed(c)
	}
}

// hasNamedInstances reports whether x has instances with names that are up.
func (na *natives) hasNamedInstances(x *extension) bool {
	health, _ := na.mon.Extension(x.id)
	return slices.ContainsFunc(health.Instances, isUpAndNamed)
}

func isUpAndNamed(i liveness.Instance) bool {
	return i.Instance != "" && i.State != heartbeat.Lost && i.State != heartbeat.Shutdown
}

// manifestWithdrawn handles that the manifest of x was removed while its service still runs. For instances that only
// send heartbeats, the manifest's announcement is all that there is, so it becomes theirs.
func (na *natives) manifestWithdrawn(x *extension) {
	health, _ := na.mon.Extension(x.id)
	if m := x.announcements[""]; m != nil {
		for _, i := range health.Instances {
			if x.announcements[i.Instance] == nil && isUpAndNamed(i) {
				a := *m
				a.Instance, a.implied = i.Instance, true
				x.announcements[i.Instance] = &a
				m.size = 0 // counted once; the others share its strings
			}
		}
		na.removeAnnouncement(x, "")
	}
	na.reconsider[x.id] = true
}

// empty reports whether an extension has neither an instance nor a manifest.
func (f *core) empty(id string) bool {
	health, known := f.mon.Extension(id)
	x := f.exts[id]
	return known && len(health.Instances) == 0 && (x == nil || x.announcements[""] == nil)
}

// changed handles a change of an extension's state.
func (f *core) changed(c liveness.Change) {
	x := f.exts[c.ID]
	switch c.Kind {
	case liveness.WentLost:
		f.logLost(c, x)
	case liveness.CameBack:
		if x != nil {
			delete(x.requests, c.Instance) // the cause of the missing announcement may be gone
		}
		f.log(slog.LevelInfo, "extension back", "extension", c.ID, "instance", c.Instance)
	case liveness.Dropped:
		if x != nil {
			f.removeAnnouncement(x, c.Instance)
			f.dropAlerts(x, c.Instance, f.now)
			f.removeLocation(x, c.Instance)
			delete(x.requests, c.Instance)
			f.prune(x)
		}
	case liveness.Forgotten:
		f.log(slog.LevelInfo, "extension forgotten", "extension", c.ID, "reason", c.Reason)
		f.forgotten(c.ID)
		return
	}
	f.mark(StateKey(c.ID), c.Best == heartbeat.Ready && c.WasBest != heartbeat.Ready) // callers wait for it
	f.reconsider[c.ID] = true
}

func (f *core) logLost(c liveness.Change, x *extension) {
	host := ""
	if x != nil && x.locations[c.Instance] != nil {
		host = x.locations[c.Instance].host
	}
	f.log(slog.LevelWarn, "extension lost", "extension", c.ID, "instance", c.Instance, "host", host,
		"silence_ms", c.Silence.Milliseconds(), "reason", c.Reason)
}

func (f *core) forgotten(id string) {
	if x := f.exts[id]; x != nil {
		f.drop(x)
	}
	delete(f.reconsider, id)
	delete(f.unrestored, id)
	f.mark(SpecKey(id), false)
	f.mark(StateKey(id), false)
	for _, other := range f.names.Set(id, nil) {
		f.mark(SpecKey(other), false)
	}
}

// nameTools registers the names of x's tools and marks all extensions with names that change by it.
func (f *core) nameTools(x *extension) {
	var tools []string
	if x.tools != nil {
		for _, t := range x.tools.tools {
			tools = append(tools, t.Own)
		}
	}
	for _, other := range f.names.Set(x.id, tools) {
		f.mark(SpecKey(other), true)
	}
}
