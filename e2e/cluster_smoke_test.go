package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestClusterTable makes one row of the table of faults: three NATS servers, two registries, two bridges and a
// service, of which a bridge's child is killed.
func TestClusterTable(t *testing.T) {
	if os.Getenv("EXTMESH_SLOW") != "1" {
		t.Skip("eight processes and a build; set EXTMESH_SLOW=1")
	}
	exe := filepath.Join(t.TempDir(), "cluster")
	if out, err := exec.Command("go", "build", "-o", exe, "../bench/cluster").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-quick", "-rows", "child")
	cmd.Dir = ".." // it builds the programs
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	ran := 0
	for line := range strings.Lines(string(out)) {
		cells := strings.Split(line, "|")
		if len(cells) < 10 || strings.Contains(line, "---") || strings.Contains(line, "| fault |") || strings.Contains(line, "NOT RUN") {
			continue
		}
		ran++
		if !strings.Contains(cells[1], "child, SIGKILL") || strings.Contains(cells[3], "never") || strings.TrimSpace(cells[8]) != "0" {
			t.Errorf("the row is not as it should be: %s", line)
		}
		if strings.Contains(cells[7], nativeLost) {
			t.Errorf("the death of a child lost calls of another extension: %s", cells[7])
		}
	}
	if not := strings.Count(string(out), "NOT RUN: "); ran != 1 || not != 14 {
		t.Errorf("%d rows were run and %d were not:\n%s", ran, not, out)
	}
}

// nativeLost is how the table names a lost call of the service that nothing happens to.
const nativeLost = " native ("
