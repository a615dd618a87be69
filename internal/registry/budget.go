package registry

import (
	"fmt"
	"os"

	"github.com/extmesh/extmesh/internal/memlimit"
)

// The memory limit bounds what a replica keeps: a quarter of it for announcements, tools and reports, and a sixteenth
// for messages queued for the loop. The catalog's documents, which every replica has as well, take about as much as
// the first, and the garbage collector lets the heap double.
const (
	defaultMemory  = 4 << 30 // used without GOMEMLIMIT and a control group limit
	minMemory      = 128 << 20
	keptShare      = 4
	queuedShare    = 16
	maxQueuedSize  = 96 << 20
	queuedOverhead = 256 // overhead of a queued message
)

// memoryLimit is the memory that this process may use: the configured limit, or else the machine's memory.
func memoryLimit() int64 {
	if limit := memlimit.Bytes(); limit > 0 {
		return limit
	}
	text, _ := os.ReadFile("/proc/meminfo") // Linux only
	var kib int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil && kib > 0 {
		return min(kib<<10, defaultMemory)
	}
	return defaultMemory
}

// maxKept is the limit of the bytes of announcements, tools and reports.
func (c Config) maxKept() int { return int(c.MemoryLimit / keptShare) }

// maxQueued is the limit of what is queued for the loop.
func (c Config) maxQueued() (messages, bytes int) {
	bytes = min(int(c.MemoryLimit/queuedShare), maxQueuedSize)
	return bytes / queuedOverhead, bytes
}
