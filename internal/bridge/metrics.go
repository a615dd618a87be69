package bridge

import (
	"io"
	"maps"
	"slices"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// extensionTotals sums up all replicas of an extension, so that the number of series depends neither on the replicas nor
// on what is called.
type extensionTotals struct {
	id       string
	states   map[heartbeat.State]int
	breakers map[heartbeat.BreakerState]int
	counts   serve.Counts
	skipped  Skipped
}

// reportedStates are the states of instances that a bridge reports, breakerStates the states of their breakers.
var (
	reportedStates = []heartbeat.State{heartbeat.Draining, heartbeat.Failed, heartbeat.Gated, heartbeat.Ready, heartbeat.Restarting,
		heartbeat.Shutdown, heartbeat.Spawning}
	breakerStates = []heartbeat.BreakerState{heartbeat.BreakerClosed, heartbeat.BreakerHalfOpen, heartbeat.BreakerOpen}
)

// refusalKinds are the error kinds of calls that were refused without being forwarded to the extension.
var refusalKinds = []string{rpc.CodeParse.Kind(), rpc.CodeInvalidRequest.Kind(), rpc.CodeMethodNotFound.Kind(), rpc.CodeInvalidParams.Kind(),
	rpc.CodeUnavailable.Kind(), rpc.CodeBreakerOpen.Kind(), rpc.CodeOverloaded.Kind()}

// WriteMetrics writes the metrics of this bridge's extensions in the Prometheus text format, for the /metrics page of
// internal/daemon. Counters restart from zero when a reload replaces an extension. It may be called at any time, also
// before Run, and is safe for concurrent use.
func (b *Bridge) WriteMetrics(w io.Writer) {
	instances := b.fleet.all()
	all := totals(instances)
	gauge := func(name, help string) { daemon.Family(w, name, "gauge", help) }
	counter := func(name, help string) { daemon.Family(w, name, "counter", help) }

	gauge("extmesh_bridge_instances", "Instances of an extension by state.")
	for _, t := range all {
		for _, s := range reportedStates {
			daemon.Sample(w, "extmesh_bridge_instances", float64(t.states[s]), "extension", t.id, "state", string(s))
		}
	}
	gauge("extmesh_bridge_breakers", "Instances of an extension by the state of their circuit breaker.")
	for _, t := range all {
		for _, s := range breakerStates {
			daemon.Sample(w, "extmesh_bridge_breakers", float64(t.breakers[s]), "extension", t.id, "state", string(s))
		}
	}
	gauge("extmesh_bridge_inflight_calls", "Calls in progress.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_inflight_calls", float64(t.counts.InFlight), "extension", t.id)
	}
	counter("extmesh_bridge_restarts_total", "Restarts of an extension's processes.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_restarts_total", float64(t.counts.Restarts), "extension", t.id)
	}
	counter("extmesh_bridge_calls_total", "Requests received for an extension, including refused ones.")
	for _, t := range all {
		daemon.Sample(w, "extmesh_bridge_calls_total", float64(t.counts.Calls), "extension", t.id)
	}
	counter("extmesh_bridge_refusals_total", "Calls refused without being forwarded to the extension, by kind of error.")
	byKind(w, "extmesh_bridge_refusals_total", all, true)
	counter("extmesh_bridge_errors_total", "Calls that failed in the extension or on the way to it, by kind of error; kind extension: the extension's own errors, kind tool_error: MCP results with isError.")
	byKind(w, "extmesh_bridge_errors_total", all, false)
	daemon.Family(w, "extmesh_bridge_call_duration_seconds", "histogram", "Time from the arrival of a call to its response.")
	for _, t := range all {
		daemon.Histogram(w, "extmesh_bridge_call_duration_seconds", t.counts.Took, "extension", t.id)
	}
	counter("extmesh_bridge_skipped_total", "Messages dropped on their way from or to an extension, by reason.")
	for _, t := range all {
		t.writeSkipped(w)
	}
	writeTools(w, b.calls.Counts(""))
	writeChildren(w, instances)
	gauge("extmesh_bridge_problems", "Invalid manifests of this host, and extensions with unmet requirements, by kind.")
	problems := b.problems()
	for _, kind := range slices.Sorted(maps.Keys(problems)) {
		daemon.Sample(w, "extmesh_bridge_problems", float64(problems[kind]), "kind", kind)
	}
}

// byKind writes the counts of refusals, or of all other errors.
func byKind(w io.Writer, name string, all []*extensionTotals, refusals bool) {
	for _, t := range all {
		for _, kind := range slices.Sorted(maps.Keys(t.counts.ByKind)) {
			if slices.Contains(refusalKinds, kind) == refusals {
				daemon.Sample(w, name, float64(t.counts.ByKind[kind]), "extension", t.id, "kind", kind)
			}
		}
	}
}

// writeTools writes the metrics of single tools, of which a bridge has a limited number.
func writeTools(w io.Writer, all []calls.Counts) {
	daemon.Family(w, "extmesh_bridge_tool_duration_seconds", "histogram", "Time from the arrival of a call of a tool to its response; tool _other: other methods, and tools over the limit.")
	for _, c := range all {
		daemon.Histogram(w, "extmesh_bridge_tool_duration_seconds", c.Took, "extension", c.ID, "tool", c.Tool)
	}
	daemon.Family(w, "extmesh_bridge_tool_errors_total", "counter", "Calls of a tool that were answered with an error, or with an MCP result with isError.")
	for _, c := range all {
		daemon.Sample(w, "extmesh_bridge_tool_errors_total", float64(c.Failed), "extension", c.ID, "tool", c.Tool)
	}
}

// writeChildren writes what the processes of the extensions use.
func writeChildren(w io.Writer, instances []*instance) {
	used := map[string]child.Activity{}
	for _, s := range instances {
		sum, u := used[s.workload.id()], s.history.usage()
		sum.Processes += u.Processes
		sum.Resident += u.Resident
		sum.CPU += u.CPU
		used[s.workload.id()] = sum
	}
	for _, f := range []struct {
		name, typ, help string
		value           func(a child.Activity) float64
	}{
		{"extmesh_bridge_child_processes", "gauge", "Processes of an extension, with their descendants.",
			func(a child.Activity) float64 { return float64(a.Processes) }},
		{"extmesh_bridge_child_resident_bytes", "gauge", "Memory of the processes of an extension.",
			func(a child.Activity) float64 { return float64(a.Resident) }},
		{"extmesh_bridge_child_cpu_seconds_total", "counter", "Processor time of the processes of an extension, including those that have ended.",
			func(a child.Activity) float64 { return a.CPU.Seconds() }},
	} {
		daemon.Family(w, f.name, f.typ, f.help)
		for _, id := range slices.Sorted(maps.Keys(used)) {
			daemon.Sample(w, f.name, f.value(used[id]), "extension", id)
		}
	}
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

// totals returns the sums per extension of instances that are sorted by id.
func totals(instances []*instance) []*extensionTotals {
	var all []*extensionTotals
	for _, s := range instances {
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
	t.counts.Took.Add(c.Took)
	if t.counts.ByKind == nil {
		t.counts.ByKind = map[string]uint64{}
	}
	for kind, n := range c.ByKind {
		t.counts.ByKind[kind] += n
	}
}

// problems counts this host's problems by kind.
func (b *Bridge) problems() map[string]int {
	n := map[string]int{"gated": 0, "invalid": 0}
	for _, p := range b.plan().problems {
		n[p.Kind]++
	}
	return n
}
