package registry

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// WriteMetrics writes s in the text format of Prometheus, for the /metrics of internal/daemon. Only the leader writes the
// metrics of the fleet: a standby detects lost instances later, and a sum over the replicas would count everything twice.
func (s Status) WriteMetrics(w io.Writer) error {
	m := metrics{b: &strings.Builder{}}
	if s.Leading {
		m.fleet(s.Mesh)
	}
	m.one("extmesh_registry_leader", "gauge", "1 while this replica writes the catalog.", btoi(s.Leading))
	m.one("extmesh_registry_replicas", "gauge", "Registry replicas with recent heartbeats, including this one.", len(s.Replicas))
	m.one("extmesh_registry_jetstream_up", "gauge", "1 while the catalog's bucket can be used.", btoi(s.JetStream == "ok"))
	m.one("extmesh_catalog_revision", "gauge", "Revision of the catalog.", s.Revision)
	m.one("extmesh_catalog_age_seconds", "gauge", "Time since the leader was last active.", float64(s.AgeMS)/1000)
	m.one("extmesh_registry_pending_keys", "gauge", "Keys to be compared and written.", s.Pending)
	m.one("extmesh_registry_handshakes", "gauge", "Handshakes running or queued.", s.Handshakes)
	t := s.Traffic
	m.one("extmesh_announces_total", "counter", "Announcements accepted.", t.Announces)
	m.one("extmesh_beats_total", "counter", "Heartbeats accepted.", t.Beats)
	m.one("extmesh_suspects_total", "counter", "Unavailable instances reported by callers.", t.Suspects)
	m.one("extmesh_beat_lag_seconds", "gauge", "Average delay from a heartbeat's time stamp to its arrival, including clock differences.", t.BeatLagMS/1000)
	m.one("extmesh_registry_batches_total", "counter", "Batches written to the catalog.", t.Batches)
	m.one("extmesh_registry_writes_total", "counter", "Keys written to the catalog.", t.Writes)
	m.one("extmesh_registry_write_failures_total", "counter", "Batches that failed.", t.Failures)
	m.one("extmesh_registry_scans_total", "counter", "Snapshots read of the catalog.", t.Scans)
	m.head("extmesh_refused_total", "counter", "Messages refused, by kind.")
	for _, what := range refusable { // also those with 0: increase() does not include the first sample of a series
		m.line("extmesh_refused_total", fmt.Sprintf("what=%q", what), s.Refused[what])
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

// fleet writes the metrics of the whole mesh.
func (m *metrics) fleet(s Mesh) {
	states(m, "extmesh_extensions", "Extensions by state.", s.Extensions)
	states(m, "extmesh_instances", "Instances by state.", s.Instances)
	m.head("extmesh_hosts", "gauge", "Bridges by state; shutdown: it stopped its extensions before it ended; unknown: it has never answered a ping.")
	for _, h := range [...]struct{ state, label heartbeat.State }{{heartbeat.Lost, heartbeat.Lost}, {heartbeat.Ready, heartbeat.Ready}, {heartbeat.Shutdown, heartbeat.Shutdown}, {"", "unknown"}} {
		m.line("extmesh_hosts", fmt.Sprintf("state=%q", h.label), s.Hosts[h.state])
	}
	m.one("extmesh_tools", "gauge", "Tools with a name.", s.Tools)
	m.one("extmesh_bridges", "gauge", "Bridges that have reported, including lost ones.", s.Bridges)
	m.one("extmesh_skills", "gauge", "Skills in the catalog.", s.Skills)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

type metrics struct{ b *strings.Builder }

func (m *metrics) head(name, kind, help string) {
	fmt.Fprintf(m.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (m *metrics) line(name, labels string, value any) {
	fmt.Fprintf(m.b, "%s{%s} %v\n", name, labels, value)
}

func (m *metrics) one(name, kind, help string, value any) {
	m.head(name, kind, help)
	fmt.Fprintf(m.b, "%s %v\n", name, value)
}

func states(m *metrics, name, help string, counts map[heartbeat.State]int) {
	m.head(name, "gauge", help)
	all := []heartbeat.State{heartbeat.Ready, heartbeat.Draining, heartbeat.Restarting, heartbeat.Spawning,
		heartbeat.Lost, heartbeat.Failed, heartbeat.Gated, heartbeat.Shutdown}
	slices.SortFunc(all, func(a, b heartbeat.State) int { return cmp.Compare(a, b) })
	for _, s := range all {
		m.line(name, fmt.Sprintf("state=%q", s), counts[s])
	}
}
