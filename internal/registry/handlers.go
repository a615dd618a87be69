package registry

import (
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
	maxRequests         = 3 // per instance without an announcement, or bridge without a report
)

// handleHeartbeat processes one heartbeat.
func (l *loop) handleHeartbeat(id string, data []byte, now time.Time) {
	if id == registryID {
		l.handleReplicaHeartbeat(data, now)
		return
	}
	b, err := heartbeat.Parse(data)
	if err == nil && b.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", b.ID, id)
	}
	if err == nil {
		err = checkHeartbeatID(id)
	}
	if err != nil {
		l.refuse("beat", id, err)
		return
	}
	x := l.exts[id]
	if b.Instance == "" && !l.mayOmitInstance(id) {
		l.refuse("beat", id, errNoInstance)
		l.requestFrom(x, "", now)
		return
	}
	l.traffic.heartbeat(b, now)
	if x == nil {
		if x = l.handleUnannounced(b, now); x == nil {
			return
		}
	}
	l.observe(x, b, now)
	l.checkAnnouncement(x, &b, now)
	if p := x.locations[b.Instance]; p != nil && p.bridge != "" && l.bridges[p.bridge] == nil {
		l.requestFor(&x.bridgeRequests, now)
	}
}

// observe applies the state of an instance of x, as reported by a heartbeat or an inventory.
func (l *loop) observe(x *extension, b heartbeat.Message, now time.Time) {
	x.dropped = false
	delete(l.removed, instanceKey{x.id, b.Instance})
	l.confirmRun(x, b.Instance)
	c, changed := l.mon.Observe(b, now)
	if c.NewRun {
		l.instanceRestarted(x, b.Instance)
	}
	if changed {
		l.changed(c)
	}
	l.considerHandshake(x, b.Instance)
	l.heartbeatOnHold(x, b.Instance, now)
}

// heartbeat counts a heartbeat and averages its delay.
func (t *Traffic) heartbeat(b heartbeat.Message, now time.Time) {
	t.Beats++
	if !b.TS.IsZero() {
		lag := float64(now.Sub(b.TS)) / float64(time.Millisecond)
		t.BeatLagMS += (lag - t.BeatLagMS) / 100
	}
}

func checkHeartbeatID(id string) error {
	parent := ""
	if first, _, dotted := strings.Cut(id, "."); dotted {
		parent = first
	}
	return checkID(id, parent)
}

// handleUnannounced processes a heartbeat of an id without an announcement. All extensions are requested to announce.
// A service that still sends only heartbeats is assumed to serve its tools under the mesh's own prefix.
func (l *loop) handleUnannounced(b heartbeat.Message, now time.Time) *extension {
	s := l.unannounced[b.ID]
	if s == nil {
		if len(l.unannounced) < maxUnannounced && l.requestAnnouncements(now) { // else with its next heartbeat
			l.unannounced[strings.Clone(b.ID)] = &unannounced{since: now, requests: announceRequests{round: l.lastRequest, times: 1}}
		}
		return nil
	}
	waited := now.Sub(s.since)
	coming := now.Sub(l.lastAnnouncement) < unannouncedGrace && waited < maxUnannouncedGrace // its own announcement may be among them
	if waited < unannouncedGrace || coming {
		return nil
	}
	if strings.Contains(b.ID, ".") { // a member needs its parent, which a heartbeat does not contain
		l.requestFor(&s.requests, now)
		return nil
	}
	a := wire.Announce{ID: b.ID, Version: b.Version, Instance: b.Instance, SubjectPrefix: string(l.cfg.Prefix),
		Transport: "nats", Dialect: "ext"}
	if a.Version == "" {
		a.Version = "0.0.0"
	}
	return l.admit(&announced{Announce: a, at: now, implied: true}, now)
}

// requestAnnouncements requests announcements from all extensions, at most every requestEvery. It reports whether it has
// just done so.
func (l *loop) requestAnnouncements(now time.Time) bool {
	if since := now.Sub(l.lastRequest); since < requestEvery {
		return since < unannouncedGrace/2
	}
	l.lastRequest = now
	if err := l.nc.Publish(l.cfg.Prefix.AnnounceRequest(), nil); err != nil {
		l.log.Warn("cannot publish the announce request", "error", err)
	}
	return true
}

// unannounced is an id that sends heartbeats without an announcement.
type unannounced struct {
	since    time.Time
	requests announceRequests
}

// announceRequests limits how often one instance or bridge can cause requests that all extensions announce. Some
// never answer them, or with something else than their heartbeats contain.
type announceRequests struct {
	times int
	round time.Time // the last request that is counted, or older than the cause
}

// requestFor requests announcements from all because of one instance or bridge, up to maxRequests times. A request
// caused by any of them counts for all of them; otherwise 1,000 unresponsive ones would keep the whole fleet
// announcing for 15 minutes.
func (l *loop) requestFor(a *announceRequests, now time.Time) {
	switch {
	case a.round.IsZero(): // requests before the cause do not count
		a.round = l.lastRequest
	case !a.round.Equal(l.lastRequest):
		a.times, a.round = a.times+1, l.lastRequest
	}
	if a.times >= maxRequests || !l.requestAnnouncements(now) || a.round.Equal(l.lastRequest) {
		return
	}
	a.times, a.round = a.times+1, l.lastRequest
}

// checkAnnouncement requests announcements if an instance of a known extension sends heartbeats without having
// announced itself, or with the digest of another announcement. This replica may have missed the announcement.
func (l *loop) checkAnnouncement(x *extension, b *heartbeat.Message, now time.Time) {
	have := x.announcements[b.Instance]
	if have == nil {
		have = x.announcements[""]
	}
	if have != nil && !have.implied && (b.Announced == "" || b.Announced == have.digest) {
		delete(x.requests, b.Instance)
		return
	}
	if _, known := l.mon.Instance(x.id, b.Instance); !known {
		return
	}
	l.requestFrom(x, b.Instance, now)
}

// requestFrom requests announcements because of an instance of x that has not sent its own.
func (l *loop) requestFrom(x *extension, instance string, now time.Time) {
	a := x.requests[instance]
	if a == nil {
		if len(x.requests) >= 2*maxAnnouncements { // the monitor drops instances without an event to make room for new ones
			l.forgetUnknown(x)
		}
		a = new(announceRequests)
		x.requests[strings.Clone(instance)] = a
	}
	l.requestFor(a, now)
}

var errNoInstance = errors.New("the message has no instance, and the instances of this extension have names")

// mayOmitInstance reports whether a heartbeat or shutdown notice without an instance is accepted. It is if the
// extension was announced without one, or only sends heartbeats. If this replica has received no announcement, the
// catalog decides.
func (l *loop) mayOmitInstance(id string) bool {
	x := l.exts[id]
	if x == nil || x.announcements[""] != nil {
		return true
	}
	for _, a := range x.announcements {
		return a.implied // either all announcements are implied or none
	}
	var d wire.StateDoc
	if value := l.view.get(stateKey(id)); value != nil && json.Unmarshal(value, &d) != nil {
		return false
	}
	unnamed := func(i wire.InstanceState) bool { return i.Instance == "" }
	return len(d.Instances) == 0 || slices.ContainsFunc(d.Instances, unnamed)
}

// handleAnnouncement processes the announcement of one instance.
func (l *loop) handleAnnouncement(id string, data []byte, now time.Time) {
	a, err := parseAnnounce(id, data, l.cfg.Prefix)
	if err != nil {
		l.refuse("announce", id, err)
		return
	}
	l.traffic.Announces++
	l.lastAnnouncement = now
	a.Capabilities.Tools, a.Capabilities.Hooks = nil, nil // the handshake returns them
	if x := l.admit(&announced{Announce: a, at: now, size: keptSize(&a), digest: wire.AnnounceDigest(data)}, now); x != nil {
		l.considerHandshake(x, a.Instance)
	}
}

// handleShutdown processes the shutdown notice of one instance.
func (l *loop) handleShutdown(id string, data []byte, now time.Time) {
	var g wire.ShutdownNotice
	err := json.Unmarshal(data, &g)
	if err == nil && g.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", g.ID, id)
	}
	if err == nil && g.Instance == "" && !l.mayOmitInstance(id) {
		err = errNoInstance
	}
	if err != nil {
		l.refuse("shutdown", id, err)
		return
	}
	if g.Reason == wire.ReasonRemoved && len(l.removed) < maxRemoved && heartbeat.CheckInstance(g.Instance) == nil {
		l.removed[instanceKey{strings.Clone(id), g.Instance}] = now
	}
	if g.Reason == wire.ReasonRemoved {
		l.removeInstance(id, g.Instance, now)
	} else if c, ok := l.mon.Deregister(id, g.Instance, g.Reason, now); ok {
		l.changed(c)
	}
}

// removeInstance removes an instance that will not return, or with "" the manifest of a service. The extension is
// removed with the last of them.
func (l *loop) removeInstance(id, instance string, now time.Time) {
	x := l.exts[id]
	var c liveness.Change
	var ok bool
	switch {
	case instance == "" && x != nil && l.hasNamedInstances(x):
		l.manifestWithdrawn(x) // the manifest was removed; the service that it described is still there
	case instance == "":
		c, ok = l.mon.Forget(id)
	default:
		if c, ok = l.mon.Remove(id, instance, now); ok && l.empty(id) {
			l.changed(c)
			c, ok = l.mon.Forget(id)
		}
	}
	if ok {
		l.changed(c)
	}
}

// hasNamedInstances reports whether x has instances with names that are up.
func (l *loop) hasNamedInstances(x *extension) bool {
	health, _ := l.mon.Extension(x.id)
	return slices.ContainsFunc(health.Instances, isUpAndNamed)
}

func isUpAndNamed(i liveness.Instance) bool {
	return i.Instance != "" && i.State != heartbeat.Lost && i.State != heartbeat.Shutdown
}

// manifestWithdrawn handles that the manifest of x was removed while its service still runs. For instances that only
// send heartbeats, the manifest's announcement is all that there is, so it becomes theirs.
func (l *loop) manifestWithdrawn(x *extension) {
	health, _ := l.mon.Extension(x.id)
	if m := x.announcements[""]; m != nil {
		for _, i := range health.Instances {
			if x.announcements[i.Instance] == nil && isUpAndNamed(i) {
				a := *m
				a.Instance, a.implied = i.Instance, true
				x.announcements[i.Instance] = &a
				m.size = 0 // counted once; the others share its strings
			}
		}
		l.removeAnnouncement(x, "")
	}
	l.reconsider[x.id] = true
}

// empty reports whether an extension has neither an instance nor a manifest.
func (l *loop) empty(id string) bool {
	health, known := l.mon.Extension(id)
	x := l.exts[id]
	return known && len(health.Instances) == 0 && (x == nil || x.announcements[""] == nil)
}

// changed handles a change of an extension's state.
func (l *loop) changed(c liveness.Change) {
	x := l.exts[c.ID]
	switch c.Kind {
	case liveness.WentLost:
		l.logLost(c, x)
	case liveness.CameBack:
		if x != nil {
			delete(x.requests, c.Instance) // the cause of the missing announcement may be gone
		}
		l.log.Log(l.ctx, l.level(slog.LevelInfo), "extension back", "extension", c.ID, "instance", c.Instance)
	case liveness.Dropped:
		if x != nil {
			l.removeAnnouncement(x, c.Instance)
			l.dropAlerts(x, c.Instance, time.Now())
			l.removeLocation(x, c.Instance)
			delete(x.requests, c.Instance)
			l.prune(x)
		}
	case liveness.Forgotten:
		l.log.Log(l.ctx, l.level(slog.LevelInfo), "extension forgotten", "extension", c.ID, "reason", c.Reason)
		l.forgotten(c.ID)
		return
	}
	l.pub.mark(stateKey(c.ID), c.Best == heartbeat.Ready && c.WasBest != heartbeat.Ready) // callers wait for it
	l.reconsider[c.ID] = true
}

func (l *loop) logLost(c liveness.Change, x *extension) {
	host := ""
	if x != nil && x.locations[c.Instance] != nil {
		host = x.locations[c.Instance].host
	}
	l.log.Log(l.ctx, l.level(slog.LevelWarn), "extension lost", "extension", c.ID, "instance", c.Instance, "host", host,
		"silence_ms", c.Silence.Milliseconds(), "reason", c.Reason)
}

// level is the level of a log line about the mesh. All replicas see the same events, so only the leader logs them, or
// every replica while there is no leader.
func (l *loop) level(of slog.Level) slog.Level {
	if l.leading() || l.snapshotVersion().Stale || l.view.get(wire.KeyLease) == nil {
		return of
	}
	return slog.LevelDebug
}

func (l *loop) forgotten(id string) {
	if x := l.exts[id]; x != nil {
		for _, a := range x.announcements {
			if l.owners[a.subject()] == id {
				delete(l.owners, a.subject())
			}
		}
		l.drop(x)
	}
	delete(l.reconsider, id)
	delete(l.unrestored, id)
	l.pub.mark(specKey(id), false)
	l.pub.mark(stateKey(id), false)
	for _, other := range l.names.Set(id, nil) {
		l.pub.mark(specKey(other), false)
	}
}

// choose selects the content of an extension's spec and registers the names of its tools. Other extensions with names
// that change by it are written in the same batch.
func (l *loop) choose(id string) {
	if l.election.epoch != 0 {
		l.restore(id)
	}
	x := l.exts[id]
	if x == nil {
		return
	}
	health, _ := l.mon.Extension(id)
	if x.dropped {
		l.forgetDropped(x, health)
	}
	if l.dropStale(x, health); l.exts[id] != x {
		return
	}
	changed := l.leading() && x.choose(health) // a standby shows the leader's choice
	if changed {
		l.nameTools(x)
		l.markUrgent(id) // followers should see the state together with the tools
	}
	l.pub.mark(specKey(id), changed)
}

// nameTools registers the names of x's tools and marks all extensions with names that change by it.
func (l *loop) nameTools(x *extension) {
	var tools []string
	if x.tools != nil {
		for _, t := range x.tools.tools {
			tools = append(tools, t.Own)
		}
	}
	for _, other := range l.names.Set(x.id, tools) {
		l.pub.mark(specKey(other), true)
	}
}
