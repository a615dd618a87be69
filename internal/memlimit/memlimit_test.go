package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestCgroupLimit(t *testing.T) {
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
		if got := cgroupLimit(root, own); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := cgroupLimit(root, filepath.Join(root, "missing")); got != math.MaxInt64 {
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

// TestCgroupVersions reads the limits of both versions of control groups.
func TestCgroupVersions(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"memory.max":                              "max\n",
		"pod/memory.max":                          "536870912\n",
		"pod/container/memory.max":                "max\n",
		"memory/memory.limit_in_bytes":            "9223372036854771712\n", // no limit
		"memory/docker/abc/memory.limit_in_bytes": "268435456\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, groups string
		want         int64
	}{
		{"version 2, limited above", "0::/pod/container\n", 512 << 20},
		{"version 2, no limit", "0::/\n", math.MaxInt64},
		{"version 2, the host's path in a container", "0::/../kubepods/x\n", math.MaxInt64},
		{"version 1", "12:cpu:/docker/abc\n5:memory:/docker/abc\n", 256 << 20},
		{"version 1, no limit", "5:memory:/\n", math.MaxInt64},
		{"both", "5:memory:/docker/abc\n0::/pod\n", 256 << 20},
		{"nothing", "", math.MaxInt64},
	} {
		own := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(own, []byte(tc.groups), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := cgroupLimit(root, own); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
