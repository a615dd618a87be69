// Package memlimit finds the memory limit of this process.
package memlimit

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Bytes returns the lower of GOMEMLIMIT and the memory limit of this process's control group (cgroup v1 or v2, on Linux), or
// 0 if neither is set.
func Bytes() int64 {
	if limit := whole.Load(); limit > 0 {
		return limit
	}
	limit := min(debug.SetMemoryLimit(-1), cgroupLimit("/sys/fs/cgroup", "/proc/self/cgroup"))
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// whole is the limit before Obey has lowered the collector's.
var whole atomic.Int64

// Obey makes the garbage collector keep this process below nine tenths of its control group's limit, unless GOMEMLIMIT is set: otherwise the
// heap doubles between two collections, and the system ends the process before.
func Obey() {
	if limit := Bytes(); limit > 0 && os.Getenv("GOMEMLIMIT") == "" && whole.CompareAndSwap(0, limit) {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// cgroupLimit returns the lowest limit of the control groups listed in the file own and of their ancestors. In a container
// with cgroup v1 the listed path may be the host's; then only the root exists, and it has the container's limit.
func cgroupLimit(root, own string) int64 {
	limit := int64(math.MaxInt64)
	text, err := os.ReadFile(own)
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(fields) != 3 {
			continue
		}
		base, file := root, "memory.max"
		if fields[1] != "" { // version 1
			if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
			base, file = path.Join(root, "memory"), "memory.limit_in_bytes"
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			text, _ := os.ReadFile(path.Join(base, dir, file)) // "max", or missing at the root: no limit
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < unlimited {
				limit = min(limit, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// unlimited is larger than any memory, and smaller than the number that cgroup v1 uses for no limit.
const unlimited = 1 << 60
