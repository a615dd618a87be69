package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// extension is what was announced for one id and returned by handshakes. The state of its instances is in the
// Monitor.
type extension struct {
	id            string
	announcements map[string]*announced        // by instance; "" for an announcement without one
	locations     map[string]*location         // by instance
	requests      map[string]*announceRequests // by instance without the expected announcement
	handshakes    map[handshakeKey]*handshake

	since  time.Time       // first seen by this replica; earlier if it comes from the catalog
	hosts  map[string]bool // it has run on, by bridge or host; see alert.go
	alerts []alert

	refusedHeartbeats, refusedAnnouncements refusal

	shown            *announced // the announcement shown in the spec; kept when its instance is gone
	tools            *handshake // the handshake for shown; nil before the first one
	fromCatalog      bool       // read from the catalog, not announced to this replica
	restoredRevision uint64     // revision of the spec restored last
	kept             int        // bytes counted in store.size
}

// handshakeKey is equal for instances that share a handshake. Without a handshake_hash nothing shows that two
// instances have the same tools, so the key contains the instance.
type handshakeKey struct{ version, manifest, handshake, instance string }

func (a *announced) handshakeKey() handshakeKey {
	k := handshakeKey{version: a.Version, manifest: a.ManifestHash, handshake: a.HandshakeHash}
	if a.HandshakeHash == "" {
		k.instance = "/" + a.Instance
	}
	return k
}

// handshake is one handshake, pending or complete.
type handshake struct {
	done    bool
	pending bool
	err     string // of the last attempt
	at      time.Time
	size    int // bytes stored of the result
	cuts    cuts
	tools   []wire.Tool
	hooks   []string
	notes   []wire.Diagnostic
	server  *wire.Server // of an MCP server
}

// cut is what was left out of the shown tools.
func (x *extension) cut() cuts {
	if x.tools == nil {
		return cuts{}
	}
	return x.tools.cuts
}

func newExtension(id string, now time.Time) *extension {
	return &extension{id: strings.Clone(id), announcements: map[string]*announced{}, locations: map[string]*location{},
		requests: map[string]*announceRequests{}, handshakes: map[handshakeKey]*handshake{}, hosts: map[string]bool{}, since: now}
}

// choose selects the announcement and the handshake for the spec: of the highest version that is ready and has
// completed a handshake, then of the lowest instance. The previous choice stays without a candidate, and while it is only
// interrupted. Before the first one, the highest announced version is shown without tools. It reports whether the choice changed.
func (x *extension) choose(health liveness.Extension) bool {
	best, tools := x.best(health)
	switch {
	case best != nil && x.tools != nil && x.isInterrupted(health, best):
		return false
	case best != nil:
	case x.tools != nil && (health.State != heartbeat.Gated || x.fromCatalog): // no better candidate: keep what was shown
		return false
	default:
		best = x.newest()
	}
	if best == nil || best == x.shown && tools == x.tools {
		return false
	}
	x.shown, x.tools = best, tools
	return true
}

// isInterrupted reports whether what is shown would be chosen over best if a restart, or a repeated handshake, were complete.
// An instance that does not come back ends as failed or lost.
func (x *extension) isInterrupted(health liveness.Extension, best *announced) bool {
	order := compareVersions(best.Version, x.shown.Version)
	return slices.ContainsFunc(health.Instances, func(i liveness.Instance) bool {
		a := x.announcements[i.Instance]
		if a == nil || a.Version != x.shown.Version || !servesSoon(i) {
			return false
		}
		return order < 0 || order == 0 && i.Instance == x.shown.Instance && i.Instance < best.Instance
	})
}

// servesSoon reports whether an instance takes calls, or will when its restart is complete.
func servesSoon(i liveness.Instance) bool {
	return i.State == heartbeat.Ready || i.State == heartbeat.Restarting
}

func (x *extension) best(health liveness.Extension) (best *announced, tools *handshake) {
	for _, i := range health.Instances { // sorted by instance
		a := x.announcements[i.Instance]
		if a == nil || i.State != heartbeat.Ready {
			continue
		}
		s := x.handshakes[a.handshakeKey()]
		if s != nil && s.done && (best == nil || compareVersions(a.Version, best.Version) > 0) {
			best, tools = a, s
		}
	}
	if best == nil {
		// A third-party service may announce without an instance and send heartbeats under another name, or none.
		if a := x.announcements[""]; a != nil {
			if s := x.handshakes[a.handshakeKey()]; s != nil && s.done {
				return a, s
			}
		}
	}
	return best, tools
}

func (x *extension) newest() *announced {
	var best *announced
	for _, name := range slices.Sorted(maps.Keys(x.announcements)) {
		if a := x.announcements[name]; best == nil || compareVersions(a.Version, best.Version) > 0 {
			best = a
		}
	}
	return best
}

// compareVersions orders by semantic version. Invalid versions come first, in lexical order.
func compareVersions(a, b string) int {
	va, vb := "v"+a, "v"+b
	if semver.IsValid(va) || semver.IsValid(vb) {
		return cmp.Or(semver.Compare(va, vb), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

// diagnostics returns what an operator should check, in a fixed order.
func (x *extension) diagnostics(health liveness.Extension) []wire.Diagnostic {
	out := x.refusals()
	if d, ok := x.unannounced(health); ok {
		out = append(out, d)
	}
	if x.tools != nil {
		out = append(out, x.tools.notes...)
	}
	if d, ok := x.conflict(health); ok {
		out = append(out, d)
	}
	for _, a := range x.alerts {
		out = append(out, a.diagnostic)
	}
	failed := map[string]bool{}
	var failures []wire.Diagnostic
	for _, i := range health.Instances {
		a := x.announcements[i.Instance]
		if a == nil {
			a = x.announcements[""]
		}
		if a == nil || i.State != heartbeat.Ready {
			continue
		}
		if s := x.handshakes[a.handshakeKey()]; s != nil && !s.done && s.err != "" && !failed[a.Version] {
			failed[a.Version] = true
			failures = append(failures, wire.Diagnostic{Level: "error", Code: "handshake_failed",
				Message: "version " + a.Version + " did not answer initialize: " + words.Clip(s.err, maxReason)})
		}
	}
	return append(out, fewer(failures)...)
}

// unannounced returns the diagnostic of ready instances of x that have not announced themselves, although all were requested
// to.
func (x *extension) unannounced(health liveness.Extension) (wire.Diagnostic, bool) {
	var missing []string
	for _, i := range health.Instances {
		r := x.requests[i.Instance]
		if r != nil && r.unanswered && i.State == heartbeat.Ready && x.announcements[i.Instance] == nil {
			missing = append(missing, i.Instance)
		}
	}
	if len(missing) == 0 || x.announcements[""] != nil || x.shown != nil && x.shown.implied {
		return wire.Diagnostic{}, false
	}
	message := "not announced: " + firstOf(missing)
	if len(x.announcements) > 0 {
		message += "; announced are: " + firstOf(slices.Sorted(maps.Keys(x.announcements)))
	}
	return wire.Diagnostic{Level: "warn", Code: codeInstancesNotAnnounced, Message: message}, true
}

// The limits of diagnostics in a spec, which exists for its tools.
const (
	maxAlike  = 20  // diagnostics of one code
	maxReason = 500 // of text from others
)

// fewer shortens diagnostics of one code; thousands of tools or instances can have the same problem.
func fewer(ds []wire.Diagnostic) []wire.Diagnostic {
	if len(ds) <= maxAlike {
		return ds
	}
	more := ds[0]
	more.Message = fmt.Sprintf("and %d more", len(ds)-maxAlike)
	return append(ds[:maxAlike:maxAlike], more)
}

// conflict returns a diagnostic if ready instances of the shown version have different hashes.
func (x *extension) conflict(health liveness.Extension) (wire.Diagnostic, bool) {
	hashes := map[[2]string][]string{}
	for _, i := range health.Instances {
		a := x.announcements[i.Instance]
		if a != nil && x.shown != nil && a.Version == x.shown.Version && i.State == heartbeat.Ready {
			k := [2]string{a.ManifestHash, a.HandshakeHash}
			hashes[k] = append(hashes[k], a.where())
		}
	}
	if len(hashes) < 2 {
		return wire.Diagnostic{}, false
	}
	var groups []string
	for _, hosts := range hashes {
		slices.Sort(hosts)
		hosts = slices.Compact(hosts)
		groups = append(groups, strings.Join(hosts[:min(len(hosts), 3)], ", "))
	}
	slices.Sort(groups)
	if n := len(groups) - maxAlike; n > 0 {
		groups = append(groups[:maxAlike], fmt.Sprint(n, " more"))
	}
	return wire.Diagnostic{Level: "warn", Code: "conflict", Message: "version " + x.shown.Version +
		" has different manifests or tools on " + strings.Join(groups, " and on ")}, true
}

// where is a short name of the place of an instance, which differs between the replicas of one bridge.
func (a *announced) where() string {
	where := cmp.Or(a.Bridge, a.Host, a.Instance)
	if a.Bridge != "" && a.Replica > 0 {
		where += fmt.Sprintf("/%d", a.Replica)
	}
	return where
}

// spec builds the spec to show, or nil if nothing was announced yet.
func (x *extension) spec(health liveness.Extension, names *wire.Names) *wire.Spec {
	a := x.shown
	if a == nil {
		return nil
	}
	s := &wire.Spec{
		ID: x.id, Version: a.Version, About: a.About,
		Transport: a.Transport, Dialect: a.Dialect, Subject: a.subject(), Features: x.features(health), Context: a.Context,
		ManifestHash: a.ManifestHash, Parent: a.Parent,
		Declared: wire.Declared{Channels: a.Capabilities.Channels, Providers: a.Capabilities.Providers},
		Tools:    []wire.Tool{}, Diagnostics: x.diagnostics(health),
	}
	if x.tools == nil {
		return s
	}
	s.HandshakeHash, s.Hooks, s.Server = a.HandshakeHash, x.tools.hooks, x.tools.server
	if s.Server != nil { // whatever the announcement has
		s.Dialect = "mcp"
	}
	s.Tools = make([]wire.Tool, len(x.tools.tools))
	var clashes []wire.Diagnostic
	for n, t := range x.tools.tools {
		k := wire.ToolKey{ID: x.id, Tool: t.Own}
		t.Name, t.Description = names.Name(k), wire.PrefixDescription(x.id, t.Description)
		s.Tools[n] = t
		if names.Clash(k) {
			clashes = append(clashes, wire.Diagnostic{Level: "warn", Code: "name_clash",
				Message: wire.ToolName(x.id, t.Own) + " is claimed by more than one tool; " + k.String() +
					" is registered as " + t.Name})
		}
	}
	s.Diagnostics = append(s.Diagnostics, fewer(clashes)...)
	return s
}

// features returns the features of what is shown. NATS gives a call to any instance, and a caller takes the silence of one
// without the feature stream for its end, so all of them need it.
func (x *extension) features(health liveness.Extension) []string {
	lacksStream := func(i liveness.Instance) bool {
		a := x.announcements[i.Instance]
		return a != nil && servesSoon(i) && !slices.Contains(a.Features, wire.FeatureStream)
	}
	if !slices.ContainsFunc(health.Instances, lacksStream) {
		return x.shown.Features
	}
	return slices.DeleteFunc(slices.Clone(x.shown.Features), func(f string) bool { return f == wire.FeatureStream })
}

// sameMoment is the largest difference between the times at which two replicas receive the same change.
const sameMoment = 2 * time.Second

// state builds the state to show. Times of what has not changed are copied from was, the present document, so that it
// does not matter which replica wrote it.
func (x *extension) state(health liveness.Extension, was *wire.StateDoc) *wire.StateDoc {
	d := &wire.StateDoc{State: health.State, Available: health.Available, Reason: health.Reason,
		Since: health.Since.UTC().Truncate(time.Millisecond), Breaker: shownBreaker(health), Instances: make([]wire.InstanceState, 0, len(health.Instances))}
	old := map[string]*wire.InstanceState{}
	if was != nil {
		if was.State == d.State && !was.Since.After(d.Since.Add(sameMoment)) {
			d.Since = was.Since
		}
		for n := range was.Instances {
			old[was.Instances[n].Instance] = &was.Instances[n]
		}
	}
	for _, i := range health.Instances {
		s := wire.InstanceState{Instance: i.Instance, Version: i.Version, State: i.State, Reason: i.Reason,
			Since: i.Since.UTC().Truncate(time.Millisecond), Restarts: i.Restarts, Breaker: i.Breaker}
		if a := x.announcements[i.Instance]; a != nil {
			s.Version = cmp.Or(s.Version, a.Version)
		}
		if p := x.locations[i.Instance]; p != nil {
			s.Host, s.Bridge = p.host, p.bridge
		}
		if o := old[i.Instance]; o != nil {
			if o.State == s.State && o.Restarts == s.Restarts && !o.Since.After(s.Since.Add(sameMoment)) {
				s.Since = o.Since
			}
			s.Version = cmp.Or(s.Version, o.Version)
			if x.locations[i.Instance] == nil {
				s.Host, s.Bridge = o.Host, o.Bridge
			}
		}
		d.Instances = append(d.Instances, s)
	}
	return d
}

// restore applies a spec written by an earlier leader as if it had been announced.
func (x *extension) restore(value []byte, now time.Time) bool {
	var s wire.Spec
	if json.Unmarshal(value, &s) != nil || s.Version == "" {
		return false
	}
	sp := strings.TrimSuffix(s.Subject, "."+x.id+".rpc")
	a := &announced{Announce: wire.Announce{
		ID: x.id, Version: s.Version, SubjectPrefix: sp, Transport: s.Transport, Dialect: s.Dialect,
		Features: s.Features, ManifestHash: s.ManifestHash, HandshakeHash: s.HandshakeHash,
		About: s.About, Context: s.Context, Parent: s.Parent,
		Capabilities: wire.Capabilities{Channels: s.Channels, Providers: s.Providers},
	}}
	a.implied = slices.ContainsFunc(s.Diagnostics, func(d wire.Diagnostic) bool { return d.Code == codeNotAnnounced })
	x.shown = a
	x.alerts = slices.DeleteFunc(x.alerts, func(a alert) bool { return a.instance == restored && !slices.Contains(s.Diagnostics, a.diagnostic) })
	for _, d := range s.Diagnostics {
		if d.Code == codeNewHost || d.Code == codeVersionJump {
			x.addAlert(alert{d, restored, now})
		}
	}
	if len(s.Tools)+len(s.Hooks) > 0 || s.Server != nil || s.HandshakeHash != "" {
		h, cut := &handshake{done: true, hooks: s.Hooks, tools: s.Tools, server: s.Server}, false
		for n := range h.tools {
			h.tools[n].Name = ""
		}
		for _, d := range s.Diagnostics {
			cut = cut || d.Code == codeSchemaDropped
			switch d.Code {
			case codeNotAnnounced, codeInstancesNotAnnounced, codeRefused, "conflict", "name_clash", "handshake_failed", codeNewHost, codeVersionJump: // the registry's own
			default:
				h.notes = append(h.notes, d)
			}
		}
		x.tools = h
		if s.HandshakeHash != "" && !cut { // without the schemas that were cut, the handshake is made again
			x.handshakes[a.handshakeKey()] = h
		}
	}
	return true
}

// shownBreaker is the breaker in state.<id>: open if the bridges have opened those of all ready instances.
func shownBreaker(health liveness.Extension) *heartbeat.Breaker {
	var first *heartbeat.Breaker
	for _, i := range health.Instances {
		switch {
		case i.State != heartbeat.Ready:
		case i.Available():
			return nil
		case first == nil || first.RetryAt == nil || i.Breaker.RetryAt != nil && i.Breaker.RetryAt.Before(*first.RetryAt):
			first = i.Breaker
		}
	}
	return first
}
