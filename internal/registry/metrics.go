package registry

import (
	"cmp"
	"io"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// WriteMetrics writes s in the text format of Prometheus, for the /metrics of internal/daemon. Only the leader writes the
// metrics of the fleet: a standby detects lost instances later, and a sum over the replicas would count everything twice.
func (s Status) WriteMetrics(w io.Writer) {
	m := metrics{w}
	if s.Leading {
		m.fleet(s.Mesh)
	}
	m.one("extmesh_registry_leader", "gauge", "1 while this replica writes the catalog.", btoi(s.Leading))
	m.one("extmesh_registry_replicas", "gauge", "Registry replicas with recent heartbeats, including this one.", float64(len(s.Replicas)))
	m.one("extmesh_registry_jetstream_up", "gauge", "1 while the catalog's bucket can be used.", btoi(s.JetStream == "ok"))
	m.one("extmesh_catalog_revision", "gauge", "Revision of the catalog.", float64(s.Revision))
	m.one("extmesh_catalog_age_seconds", "gauge", "Time since the leader was last active.", float64(s.AgeMS)/1000)
	m.one("extmesh_registry_pending_keys", "gauge", "Keys to be compared and written.", float64(s.Pending))
	m.one("extmesh_registry_handshakes", "gauge", "Handshakes running or queued.", float64(s.Handshakes))
	t := s.Traffic
	m.one("extmesh_beat_lag_seconds", "gauge", "Average delay from a heartbeat's time stamp to its arrival, including clock differences.", t.BeatLagMS/1000)
	for _, c := range []struct {
		name, help string
		value      uint64
	}{
		{"extmesh_announces_total", "Announcements accepted.", t.Announces},
		{"extmesh_beats_total", "Heartbeats accepted.", t.Beats},
		{"extmesh_suspects_total", "Unavailable instances reported by callers.", t.Suspects},
		{"extmesh_registry_batches_total", "Batches written to the catalog.", t.Batches},
		{"extmesh_registry_writes_total", "Keys written to the catalog.", t.Writes},
		{"extmesh_registry_write_failures_total", "Batches that failed.", t.Failures},
		{"extmesh_registry_scans_total", "Snapshots read of the catalog.", t.Scans},
	} {
		m.one(c.name, "counter", c.help, float64(c.value))
	}
	daemon.Family(w, "extmesh_refused_total", "counter", "Messages refused, by kind.")
	for _, what := range refusable { // also those with 0: increase() does not include the first sample of a series
		daemon.Sample(w, "extmesh_refused_total", float64(s.Refused[what]), "what", what)
	}
}

// fleet writes the metrics of the whole mesh.
func (m metrics) fleet(s fleet.Mesh) {
	m.states("extmesh_extensions", "Extensions by state.", s.Extensions)
	m.states("extmesh_instances", "Instances by state.", s.Instances)
	daemon.Family(m.w, "extmesh_hosts", "gauge", "Bridges by state; shutdown: it stopped its extensions before it ended; unknown: it has never answered a ping.")
	for _, state := range []heartbeat.State{heartbeat.Lost, heartbeat.Ready, heartbeat.Shutdown, ""} {
		daemon.Sample(m.w, "extmesh_hosts", float64(s.Hosts[state]), "state", string(cmp.Or(state, "unknown")))
	}
	m.one("extmesh_tools", "gauge", "Tools with a name.", float64(s.Tools))
	m.one("extmesh_bridges", "gauge", "Bridges that have reported, including lost ones.", float64(s.Bridges))
	m.one("extmesh_skills", "gauge", "Skills in the catalog.", float64(s.Skills))
}

func btoi(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

type metrics struct{ w io.Writer }

func (m metrics) one(name, kind, help string, value float64) {
	daemon.Family(m.w, name, kind, help)
	daemon.Sample(m.w, name, value)
}

func (m metrics) states(name, help string, counts map[heartbeat.State]int) {
	daemon.Family(m.w, name, "gauge", help)
	for _, s := range []heartbeat.State{heartbeat.Draining, heartbeat.Failed, heartbeat.Gated, heartbeat.Lost, heartbeat.Ready,
		heartbeat.Restarting, heartbeat.Shutdown, heartbeat.Spawning} {
		daemon.Sample(m.w, name, float64(counts[s]), "state", string(s))
	}
}
