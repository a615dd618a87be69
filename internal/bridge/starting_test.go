package bridge_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestProgramDoesNotExist: a program that cannot be started is tried once, and again after each reload.
func TestProgramDoesNotExist(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("late", `"late"`, "")
	h.extension("there", `"there"`, "")
	program := filepath.Join(h.dir, "ext", "late", "say.sh")
	if err := os.Rename(program, program+".away"); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	h.answers("there", `"there"`)
	eventually(t, "it is failed", func() bool { return statusOf(t, h, "late").State == heartbeat.Failed }, h.log.String)
	if s := statusOf(t, h, "late"); strings.Contains(s.Reason, "gave up") || !strings.Contains(s.Reason, "no such file") {
		t.Errorf("reason %q", s.Reason)
	}
	h.control("reload", "{}")
	eventually(t, "it was tried again, once", func() bool { return strings.Count(h.log.String(), "extension failed") == 2 }, h.log.String)
	if err := os.Rename(program+".away", program); err != nil {
		t.Fatal(err)
	}
	h.control("reload", "{}")
	h.answers("late", `"late"`)
}

func statusOf(t *testing.T, h *host, id string) bridge.InstanceStatus {
	t.Helper()
	var r struct {
		Result bridge.Status
	}
	if err := json.Unmarshal([]byte(h.control("status", "{}")), &r); err != nil {
		t.Fatal(err)
	}
	for _, i := range r.Result.Instances {
		if i.ID == id {
			return i
		}
	}
	t.Fatalf("no %s", id)
	return bridge.InstanceStatus{}
}
