package fleet

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// breakerReport handles a caller's report that its breaker has changed. An open one makes the registry probe the
// extension; the catalog shows the breakers of the bridges only.
func (ps *probes) breakerReport(id string, data []byte, now time.Time) {
	var r wire.BreakerReport
	err := json.Unmarshal(data, &r)
	if err == nil && r.ID != "" && r.ID != id {
		err = fmt.Errorf("id %.80q does not match the subject's id %.80q", r.ID, id)
	}
	if err == nil && !heartbeat.BreakerState(r.State).Valid() {
		err = fmt.Errorf("unknown state %.80q", r.State)
	}
	if err != nil {
		ps.refuse("breaker", id, err)
		return
	}
	if r.State == string(heartbeat.BreakerOpen) {
		ps.suspected(id, "", now)
	}
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
