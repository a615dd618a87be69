package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// generate creates n extensions below dir, 100 per directory.
func generate(tb testing.TB, dir string, n int) {
	tb.Helper()
	for i := range n {
		d := filepath.Join(dir, fmt.Sprintf("group-%03d", i/100), fmt.Sprintf("ext-%05d", i))
		if err := os.MkdirAll(d, 0o755); err != nil {
			tb.Fatal(err)
		}
		text := fmt.Sprintf(`[plugin]
id = "ext-%05d"
version = "1.2.3"
description = "Number %d of many."

[capabilities]
tools = ["one", "two", "three"]
hooks = ["before_tool_call"]

[transport]
type = "stdio"
command = "python3"
args = ["main.py"]
env = { LEVEL = "${LEVEL:-info}" }

[requires]
bins = ["python3"]
env = ["EXT_TOKEN"]
`, i, i)
		if err := os.WriteFile(filepath.Join(d, "plugin.toml"), []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

func BenchmarkScan10000(b *testing.B) {
	dir := b.TempDir()
	generate(b, dir, 10_000)
	b.ReportAllocs()
	runtime.GC()
	debug.FreeOSMemory()
	for b.Loop() {
		r := Scan(b.Context(), Options{Roots: []string{dir}})
		if len(r.Candidates) != 10_000 || len(r.Diagnostics) != 0 {
			b.Fatalf("%d candidates, %v", len(r.Candidates), r.Diagnostics)
		}
	}
	if kB, ok := peakMemory(); ok {
		b.ReportMetric(kB/1024, "peak-MiB")
	}
}

// peakMemory returns the peak resident memory of this process, where the system reports it.
func peakMemory() (kB float64, ok bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n, _ := fmt.Sscan(rest, &kB)
	return kB, n == 1
}

// BenchmarkLook10000 measures one look of Watch.
func BenchmarkLook10000(b *testing.B) {
	dir := b.TempDir()
	generate(b, dir, 10_000)
	w := &watcher{opt: WatchOptions{Roots: []string{dir}}}
	for b.Loop() {
		if files := w.look(b.Context()); len(files) != 10_000 {
			b.Fatalf("%d files", len(files))
		}
	}
}
