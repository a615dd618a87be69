package registry

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/memlimit"
	"github.com/extmesh/extmesh/internal/wire"
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

// What is counted in addition to the texts.
const (
	extensionRoom = 2048
	announceRoom  = 512
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

// evictEvery is the minimum interval of evictions.
const evictEvery = time.Second

// makeRoom returns an error if there is no space for bytes more, even after evicting announcements of instances that
// have never sent a heartbeat.
func (l *loop) makeRoom(bytes int, now time.Time) error {
	if l.size+bytes > l.room && now.Sub(l.evicted) >= evictEvery {
		l.evicted = now
		l.evict(l.room*3/4 - bytes)
	}
	if l.size+bytes > l.room {
		return fmt.Errorf("the registry has stored %d of the %d bytes that its memory limit allows", l.size, l.room)
	}
	return nil
}

// evict removes announcements of instances that have never sent a heartbeat, starting with the extension that uses
// the most memory, until at most target bytes are stored.
func (l *loop) evict(target int) {
	before := l.size
	largest := slices.SortedFunc(maps.Values(l.exts), func(a, b *extension) int {
		return cmp.Or(cmp.Compare(b.kept, a.kept), cmp.Compare(a.id, b.id))
	})
	for _, x := range largest {
		if l.size <= target {
			break
		}
		l.evictSilent(x)
	}
	l.log.Warn("evicted announcements of instances that never sent a heartbeat", "bytes", before-l.size, "kept", l.size)
}

// evictSilent removes the announcements of x's instances that have never sent a heartbeat, and x itself if nothing
// else is left.
func (l *loop) evictSilent(x *extension) {
	health, _ := l.mon.Extension(x.id)
	seen := map[string]bool{"": len(health.Instances) > 0} // an announcement without an instance counts for all of them
	for _, i := range health.Instances {
		seen[i.Instance] = true
	}
	for name := range x.announcements {
		if !seen[name] {
			l.removeAnnouncement(x, name)
			l.removeLocation(x, name)
		}
	}
	l.prune(x)
	if len(x.announcements) == 0 && l.empty(x.id) {
		if c, ok := l.mon.Forget(x.id); ok {
			l.changed(c)
		}
	}
}

// roomFor returns an error if an announcement would exceed the memory limit of its extension.
func (x *extension) roomFor(a *announced) error {
	if x == nil {
		return nil
	}
	old := x.announcements[a.Instance]
	if old == nil && len(x.announcements) >= maxAnnouncements {
		return fmt.Errorf("the extension has reached the limit of %d instances", maxAnnouncements)
	}
	if x.kept+a.size <= maxPerID {
		return nil
	}
	sum := a.text()
	for _, other := range x.announcements {
		if other != old {
			sum += other.text()
		}
	}
	if sum > maxPerID {
		return fmt.Errorf("the announcements of this extension would take %d bytes, over the limit of %d", sum, maxPerID)
	}
	return nil
}

// offered is the number of bytes stored of x's handshakes.
func (x *extension) offered() (sum int) {
	for _, s := range x.handshakes {
		sum += s.size
	}
	return sum
}

// text is the number of bytes of an announcement that count towards the limit of its extension.
func (a *announced) text() int { return max(0, a.size-announceRoom) }

// keptSize is about the number of bytes stored of an announcement.
func keptSize(a *wire.Announce) int {
	sum := announceRoom
	for _, s := range []string{a.ID, a.Version, a.SubjectPrefix, a.Instance, a.Host, a.Bridge, a.Transport, a.Dialect,
		a.ManifestHash, a.HandshakeHash, a.Name, a.Description, a.Parent} {
		sum += len(s)
	}
	for _, list := range [][]string{a.Features, a.Capabilities.Tools, a.Capabilities.Hooks, a.Capabilities.Channels, a.Capabilities.Providers} {
		for _, s := range list {
			sum += len(s) + 24 // including 16 for the slice
		}
	}
	return sum
}
