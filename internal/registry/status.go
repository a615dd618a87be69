package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Status is the status of one replica and of the mesh as it sees it.
type Status struct {
	SnapshotVersion
	Name      string    `json:"name"`
	Instance  string    `json:"instance"`
	Version   string    `json:"version"`
	Started   time.Time `json:"started"`
	Leading   bool      `json:"leading"`
	Leader    string    `json:"leader,omitempty"` // the name in the lease; "" if there is no holder
	Epoch     uint64    `json:"epoch,omitempty"`  // while leading
	JetStream string    `json:"jetstream"`        // "ok", or what is wrong
	Listening time.Time `json:"listening"`        // heartbeats missing before that are not evaluated
	Replicas  []Replica `json:"replicas"`

	fleet.Mesh
	Traffic    Traffic           `json:"traffic"`
	Pending    int               `json:"pending"`    // keys to compare and write
	Handshakes int               `json:"handshakes"` // running or queued
	Refused    map[string]uint64 `json:"refused"`    // by what
	Recent     []Refusal         `json:"refusals"`   // latest first, at most 100
}

// Traffic is the counters since the start.
type Traffic struct {
	Announces uint64  `json:"announces"`
	Beats     uint64  `json:"beats"`
	Suspects  uint64  `json:"suspects"`
	Batches   uint64  `json:"batches"`
	Writes    uint64  `json:"writes"`
	Failures  uint64  `json:"write_failures"`
	Scans     uint64  `json:"scans"`
	BeatLagMS float64 `json:"beat_lag_ms"` // average delay from a heartbeat's time stamp to its arrival, including clock differences
}

// Replica is a registry with recent heartbeats; this one is included.
type Replica struct {
	Name     string `json:"name"`
	Instance string `json:"instance"`
	Version  string `json:"version,omitempty"`
	Leading  bool   `json:"leading"`
}

// Status returns the status of the running registry.
func (r *Registry) Status(ctx context.Context) (s Status, err error) {
	err = r.inLoop(ctx, func(l *loop) { s = l.status() })
	return s, err
}

func (l *loop) status() Status {
	sum := l.fleet.Summary()
	s := Status{SnapshotVersion: l.view.version(l.started), Name: l.cfg.Name, Instance: l.instance, Version: l.cfg.Version, Started: l.started,
		Leading: l.leading(), JetStream: cmp.Or(l.election.trouble, l.scans.denied, "ok"), Listening: sum.Listening,
		Mesh: sum.Mesh, Traffic: l.traffic,
		Pending: len(l.pub.dirty) + len(l.pub.inflight), Handshakes: l.handshakes.count() + l.large.count(),
		Refused: maps.Clone(l.refused.counts), Recent: l.refused.list(), Replicas: l.selfCheck.replicas()}
	s.Traffic.Announces, s.Traffic.Beats, s.Traffic.Suspects, s.Traffic.BeatLagMS = sum.Counters.Announces, sum.Counters.Heartbeats,
		sum.Counters.Suspects, sum.Counters.LagMS
	if s.Leading {
		s.Epoch = l.election.epoch
	} else {
		s.Pending = 0 // a standby compares everything when it is elected
	}
	var h holder
	if v := l.view.get(wire.KeyLease); v != nil && json.Unmarshal(v, &h) == nil {
		s.Leader = h.Name
	}
	return s
}

// replicas lists the registries with recent heartbeats.
func (p *selfCheck) replicas() []Replica {
	health, _ := p.peers.Extension(registryID)
	out := []Replica{}
	for _, i := range health.Instances {
		if i.State != heartbeat.Ready {
			continue
		}
		role, name, _ := strings.Cut(i.Reason, " ")
		out = append(out, Replica{Name: name, Instance: i.Instance, Version: i.Version, Leading: role == roleLeader})
	}
	slices.SortFunc(out, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
	return out
}

// Ready returns nil if this replica has a catalog to serve and there is an active leader, which can be another
// replica.
func (r *Registry) Ready(ctx context.Context) error {
	s, err := r.Status(ctx)
	switch {
	case err != nil:
		return err
	case s.JetStream != "ok":
		return errors.New("JetStream: " + s.JetStream)
	case s.Leader == "":
		return errors.New("no registry holds the lease")
	case s.Stale && s.AgeMS <= staleAfter.Milliseconds():
		return errors.New("the catalog is being read again")
	case s.Stale:
		return fmt.Errorf("the leader has not been active for %v", time.Duration(s.AgeMS)*time.Millisecond)
	}
	return nil
}
