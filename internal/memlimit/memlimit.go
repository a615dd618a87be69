// Package memlimit finds the limit on this process's memory that somebody has set.
package memlimit

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Bytes is the lower one of GOMEMLIMIT and the memory limit of this process's control group (v2, and on Linux only), or
// 0 where neither is set.
func Bytes() int64 {
	limit := min(debug.SetMemoryLimit(-1), ofCgroup("/sys/fs/cgroup", "/proc/self/cgroup"))
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// ofCgroup is the lowest limit of the control group that own names, and of those above it.
func ofCgroup(root, own string) int64 {
	limit := int64(math.MaxInt64)
	text, err := os.ReadFile(own)
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		dir, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
			text, _ := os.ReadFile(path.Join(root, dir, "memory.max")) // "max", or missing at the root: no limit
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}
