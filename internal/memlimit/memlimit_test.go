package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestOfCgroup(t *testing.T) {
	root := t.TempDir()
	for dir, text := range map[string]string{"": "", "pod": "1000\n", "pod/bridge": "max\n", "pod/small": "500\n", "free": "max\n"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "memory.max"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(root, "own")
	for text, want := range map[string]int64{
		"0::/pod/bridge\n":                   1000,
		"0::/pod/small\n":                    500,
		"0::/free\n":                         math.MaxInt64,
		"0::/\n":                             math.MaxInt64,
		"0::/../../pod\n":                    1000,
		"3:memory:/pod\n":                    math.MaxInt64,
		"12:cpuset:/\n0::/pod/not-there/x\n": 1000,
		"":                                   math.MaxInt64,
	} {
		if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := ofCgroup(root, own); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := ofCgroup(root, filepath.Join(root, "missing")); got != math.MaxInt64 {
		t.Errorf("without the file: %d", got)
	}
}

func TestBytes(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 20) // lower than any group that this test could run in
	defer debug.SetMemoryLimit(before)
	if got := Bytes(); got != 1<<20 {
		t.Errorf("with GOMEMLIMIT=1MiB: %d", got)
	}
}
