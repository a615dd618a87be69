package bridge

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

// TestUsage: the processor time of an extension's processes never decreases, also when a process has ended. Memory is that of the
// processes that run.
func TestUsage(t *testing.T) {
	var r runHistory
	for _, step := range []struct {
		what  string
		ended time.Duration
		now   *child.Activity // nil: no process runs
		want  child.Activity
	}{
		{"before the first run", 0, nil, child.Activity{}},
		{"it runs", 0, &child.Activity{Processes: 2, Resident: 100, CPU: 3 * time.Second}, child.Activity{Processes: 2, Resident: 100, CPU: 3 * time.Second}},
		{"a descendant has ended", 0, &child.Activity{Processes: 1, Resident: 60, CPU: 2 * time.Second}, child.Activity{Processes: 1, Resident: 60, CPU: 3 * time.Second}},
		{"it has ended", 4 * time.Second, nil, child.Activity{CPU: 4 * time.Second}},
		{"the next run", 4 * time.Second, &child.Activity{Processes: 1, Resident: 50, CPU: time.Second}, child.Activity{Processes: 1, Resident: 50, CPU: 5 * time.Second}},
	} {
		r.cpu.ended, r.activity = step.ended, nil
		if step.now != nil {
			r.activity = func() child.Activity { return *step.now }
		}
		if got := r.usage(); got != step.want {
			t.Errorf("%s: %+v, want %+v", step.what, got, step.want)
		}
	}
}
