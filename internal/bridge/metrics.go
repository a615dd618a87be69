package bridge

import (
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// totals is one extension, all its replicas taken together: how many series there are does not depend on those, nor
// on what anybody calls.
type extensionTotals struct {
	id       string
	states   map[heartbeat.State]int
	breakers map[heartbeat.BreakerState]int
	counts   mesh.Counts
	skipped  Skipped
}

// ownStates are the states that an instance's owner gives it, and breakerStates those of its breaker.
var (
	reportedStates = []heartbeat.State{heartbeat.Draining, heartbeat.Failed, heartbeat.Gated, heartbeat.Ready, heartbeat.Restarting,
		heartbeat.Shutdown, heartbeat.Spawning}
	breakerStates = []heartbeat.BreakerState{heartbeat.BreakerClosed, heartbeat.BreakerHalfOpen, heartbeat.BreakerOpen}
)

// notAsked are the kinds of errors with which a call is refused: the extension was not asked.
var refusalKinds = []string{rpc.CodeParse.Kind(), rpc.CodeInvalidRequest.Kind(), rpc.CodeMethodNotFound.Kind(), rpc.CodeInvalidParams.Kind(),
	rpc.CodeUnavailable.Kind(), rpc.CodeBreakerOpen.Kind(), rpc.CodeOverloaded.Kind()}

// WriteMetrics writes what this bridge's extensions do, in the text format of Prometheus, for the /metrics of
// internal/daemon. Counters begin anew when a reload replaces an extension. It may be called at any time, also before
// Run and while calls go on.
func (b *Bridge) WriteMetrics(w io.Writer) {
	all := b.totals()
	gauge := func(name, help string) { daemon.Family(w, name, "gauge", help) }
	counter := func(name, help string) { daemon.Family(w, name, "counter", help) }

	gauge("extmesh_bridge_instances", "Instances of an extension by state.")
	for _, t := range all {
		for _, s := range reportedStates {
			daemon.Sample(w, "extmesh_bridge_instances", float64(t.states[s]), "extension", t.id, "state", string(s))
		}
	}
	gauge("extmesh_bridge_breakers", "Instances of an extension by the state of their breaker.")
	for _, t := range all {
		for _, s := range breakerStates {
			daemon.Sample(w, "extmesh_bridge_breakers", float64(t.breakers[s]), "extension", t.id, "state", string(s))
		}
	}
	gauge("extmesh_bridge_inflight_calls", "Calls that are being answered.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_inflight_calls", float64(t.counts.InFlight), "extension", t.id)
	}
	counter("extmesh_bridge_restarts_total", "Lives of an extension's processes after the first of each instance.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_restarts_total", float64(t.counts.Restarts), "extension", t.id)
	}
	counter("extmesh_bridge_calls_total", "Requests that came for an extension, those that were refused included.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_calls_total", float64(t.counts.Calls), "extension", t.id)
	}
	counter("extmesh_bridge_refusals_total", "Calls that were refused without asking the extension, by kind.")
	byKind(w, "extmesh_bridge_refusals_total", all, true)
	counter("extmesh_bridge_errors_total", "Calls that failed on the way to the extension or in it, by kind; its own errors are of kind extension.")
	byKind(w, "extmesh_bridge_errors_total", all, false)
	daemon.Family(w, "extmesh_bridge_call_duration_seconds", "histogram", "From a call's arrival to its answer.")
	for _, t := range all {
		t.writeDurations(w)
	}
	counter("extmesh_bridge_skipped_total", "What an extension sent, or should have been sent, that came to nothing, by what it was.")
	for _, t := range all {
		t.writeSkipped(w)
	}
	gauge("extmesh_bridge_problems", "Manifests of this host that were refused, and extensions that lack what they require.")
	problems := b.problems()
	for _, kind := range slices.Sorted(maps.Keys(problems)) {
		daemon.Sample(w, "extmesh_bridge_problems", float64(problems[kind]), "kind", kind)
	}
}

// byKind writes the errors that are refusals, or those that are not.
func byKind(w io.Writer, name string, all []*extensionTotals, refusals bool) {
	for _, t := range all {
		for _, kind := range slices.Sorted(maps.Keys(t.counts.ByKind)) {
			if slices.Contains(refusalKinds, kind) == refusals {
				daemon.Sample(w, name, float64(t.counts.ByKind[kind]), "extension", t.id, "kind", kind)
			}
		}
	}
}

// writeDurations writes a histogram, whose buckets each include those before.
func (t *extensionTotals) writeDurations(w io.Writer) {
	n := uint64(0)
	for i, count := range t.counts.Took {
		n += count
		le := "+Inf"
		if i < len(mesh.TookBounds) {
			le = strconv.FormatFloat(mesh.TookBounds[i].Seconds(), 'g', -1, 64)
		}
		daemon.Sample(w, "extmesh_bridge_call_duration_seconds_bucket", float64(n), "extension", t.id, "le", le)
	}
	daemon.Sample(w, "extmesh_bridge_call_duration_seconds_sum", t.counts.TookSum.Seconds(), "extension", t.id)
	daemon.Sample(w, "extmesh_bridge_call_duration_seconds_count", float64(n), "extension", t.id)
}

func (t *extensionTotals) writeSkipped(w io.Writer) {
	for _, s := range []struct {
		what string
		n    uint64
	}{
		{"event", t.skipped.Events}, {"long_line", t.skipped.LongLines}, {"noise", t.skipped.Noise}, {"unknown_id", t.skipped.UnknownIDs}, {"unsent", t.skipped.Unsent},
	} {
		daemon.Sample(w, "extmesh_bridge_skipped_total", float64(s.n), "extension", t.id, "what", s.what)
	}
}

// totals adds the slots up, by extension, in the order of the ids.
func (b *Bridge) totals() []*extensionTotals {
	var all []*extensionTotals
	for _, s := range b.fleet.all() {
		id := s.workload.id()
		if len(all) == 0 || all[len(all)-1].id != id {
			all = append(all, &extensionTotals{id: id, states: map[heartbeat.State]int{}, breakers: map[heartbeat.BreakerState]int{}})
		}
		all[len(all)-1].add(s)
	}
	return all
}

func (t *extensionTotals) add(s *instance) {
	state, _ := s.mesh.State()
	t.states[state]++
	t.breakers[s.breakerState().State]++
	var past InstanceStatus
	s.history.fill(&past)
	if k := past.Skipped; k != nil {
		t.skipped.Noise += k.Noise
		t.skipped.UnknownIDs += k.UnknownIDs
		t.skipped.LongLines += k.LongLines
		t.skipped.Unsent += k.Unsent
		t.skipped.Events += k.Events
	}
	c := s.mesh.Counts()
	t.counts.Calls += c.Calls
	t.counts.InFlight += c.InFlight
	t.counts.Restarts += c.Restarts
	for i, n := range c.Took {
		t.counts.Took[i] += n
	}
	t.counts.TookSum += c.TookSum
	if t.counts.ByKind == nil {
		t.counts.ByKind = map[string]uint64{}
	}
	for kind, n := range c.ByKind {
		t.counts.ByKind[kind] += n
	}
}

// problems counts the host's, by kind.
func (b *Bridge) problems() map[string]int {
	n := map[string]int{"gated": 0, "invalid": 0}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.current.host.Problems {
		n[p.Kind]++
	}
	return n
}
