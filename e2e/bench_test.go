package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// benchTable runs a subcommand of the benchmarks and returns its output.
func benchTable(t *testing.T, args ...string) string {
	t.Helper()
	nightlyOnly(t, "many processes and a build")
	exe := filepath.Join(t.TempDir(), "bench")
	if out, err := exec.Command("go", "build", "-o", exe, "../bench").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets it stop its processes
	cmd.Dir = ".."                                                        // where it builds the programs
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	return string(out)
}

// cells returns the cells of those rows of Markdown tables that contain text.
func cells(table, text string) (rows [][]string) {
	for line := range strings.Lines(table) {
		if c := strings.Split(strings.Trim(line, "| \n"), " | "); len(c) > 1 && strings.Contains(line, text) {
			rows = append(rows, c)
		}
	}
	return rows
}

// TestPerformanceTable measures one row of docs/performance.md.
func TestPerformanceTable(t *testing.T) {
	out := benchTable(t, "performance", "-quick", "-only", "latency alone.*256 B, json")
	rows := cells(out, "latency alone ÷ S, 256 B, json child")
	if len(rows) != 2 || !strings.HasPrefix(rows[0][1], "**") || !strings.Contains(rows[0][5], "bare micro ") || len(rows[1]) != 9 {
		t.Errorf("want the row and the processor time of its processes:\n%s", out)
	}
}

// TestScaleTable measures a small mesh.
func TestScaleTable(t *testing.T) {
	out := benchTable(t, "scale", "-quick", "-extensions", "100")
	for _, want := range []string{
		"100 extensions of 10 tools", "| documents in which the followers and the bucket differ then | **0** |",
		"full followers | **p50 ", "| `extctl tools`, median of 5 |", "kB a second to a follower**", "\n| 100 |", "\n| 1000 |",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestFaultsTable kills a bridge's child in a mesh of three NATS servers, two registries, two bridges and a service.
func TestFaultsTable(t *testing.T) {
	out := benchTable(t, "faults", "-quick", "-only", "^child")
	rows := cells(out, "child, SIGKILL")
	if len(rows) != 1 || len(rows[0]) != 9 || len(cells(out, "SIGKILL")) != 1 {
		t.Fatalf("want one row:\n%s", out)
	}
	row := rows[0]
	if strings.Contains(row[2], "never") || row[7] != "0" {
		t.Errorf("the catalogs were not right: %q", row)
	}
	if strings.Contains(row[6], " native (") {
		t.Errorf("killing a child lost calls of another extension: %s", row[6])
	}
}
