package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScaleTable makes the tables of docs/scale.md for a small mesh, into a copy of the page.
func TestScaleTable(t *testing.T) {
	if os.Getenv("EXTMESH_SLOW") != "1" {
		t.Skip("half a minute and a build; set EXTMESH_SLOW=1")
	}
	dir := t.TempDir()
	exe, page := filepath.Join(dir, "scale"), filepath.Join(dir, "scale.md")
	if out, err := exec.Command("go", "build", "-o", exe, "../bench/scale").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	data, err := os.ReadFile("../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	write(t, page, string(data))
	cmd := exec.CommandContext(t.Context(), exe, "-quick", "-extensions", "100", "-write", page)
	cmd.Dir = ".." // it builds the programs
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Scale\n", "100 extensions of 10 tools", "| documents in which the followers and the bucket differ then | **0** |",
		"full followers | **p50 ", "| `extctl tools`, median of 5 |", "kB a second to a follower**", "\n| 100 |", "\n| 1,000 |", "## How to read it",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
