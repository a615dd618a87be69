package registry

import (
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestMetricsOfRoles: the leader has the metrics of the fleet, with the states of hosts; a standby has those of itself only.
func TestMetricsOfRoles(t *testing.T) {
	s := Status{JetStream: "ok", Mesh: fleet.Mesh{
		Extensions: map[heartbeat.State]int{heartbeat.Failed: 1}, Instances: map[heartbeat.State]int{heartbeat.Ready: 5},
		Hosts: map[heartbeat.State]int{heartbeat.Ready: 3, heartbeat.Lost: 2, "": 1}, Bridges: 6}}
	fleet := []string{`extmesh_hosts{state="ready"} 3`, `extmesh_hosts{state="lost"} 2`, `extmesh_hosts{state="shutdown"} 0`, `extmesh_hosts{state="unknown"} 1`,
		`extmesh_extensions{state="failed"} 1`, `extmesh_instances{state="ready"} 5`, `extmesh_instances{state="lost"} 0`, `extmesh_bridges 6`}
	own := []string{"extmesh_registry_jetstream_up 1", "extmesh_registry_replicas 0", `extmesh_refused_total{what="announce"} 0`}
	for leads, role := range map[bool]string{true: "extmesh_registry_leader 1", false: "extmesh_registry_leader 0"} {
		var text strings.Builder
		s.Leading = leads
		s.WriteMetrics(&text)
		for _, line := range append(own, role) {
			if !strings.Contains(text.String(), line+"\n") {
				t.Errorf("leading %v: no %s", leads, line)
			}
		}
		for _, line := range fleet {
			if strings.Contains(text.String(), line+"\n") != leads {
				t.Errorf("leading %v: %s", leads, line)
			}
		}
	}
}
