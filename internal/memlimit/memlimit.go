// Package memlimit finds the limit on this process's memory that somebody has set.
package memlimit

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Bytes is the lower one of GOMEMLIMIT and the memory limit of this process's control group (version 2 or 1, on Linux only),
// or 0 where neither is set.
func Bytes() int64 {
	limit := min(debug.SetMemoryLimit(-1), ofCgroup("/sys/fs/cgroup", "/proc/self/cgroup"))
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// ofCgroup is the lowest limit of the control groups that own lists, and of those above them. In a container of version 1 the
// path may be that of the host; then only the root is there, and has the container's limit.
func ofCgroup(root, own string) int64 {
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

// unlimited is less than what version 1 writes where there is no limit, and more than any memory.
const unlimited = 1 << 60
