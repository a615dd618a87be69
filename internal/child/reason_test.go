package child

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReasons: each file has the expected reason and then the output of a program that ended, most of them from real crashes.
func TestReasons(t *testing.T) {
	paths, err := filepath.Glob("testdata/reasons/*.txt")
	if err != nil || len(paths) < 20 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, output, ok := strings.Cut(string(data), "\n----\n")
		if !ok {
			t.Fatalf("%s has no line ----", path)
		}
		var lines []string
		for line := range strings.Lines(output) {
			line = strings.TrimSuffix(line, "\n")
			lines = append(lines, cleanLine(line, len(line), nil))
		}
		if got, _ := reasonIn(lines); got != want {
			t.Errorf("%s:\n got %s\nwant %s", path, got, want)
		}
	}
}

func FuzzReason(f *testing.F) {
	f.Add("Error: x\n    at y\n")
	f.Add("  | Traceback (most recent call last):\n  | x\n")
	f.Fuzz(func(t *testing.T, output string) {
		if got, _ := reasonIn(strings.Split(output, "\n")); len(got) > maxReason {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}
