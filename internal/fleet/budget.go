package fleet

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// What is counted in addition to the texts.
const (
	extensionRoom = 2048
	announceRoom  = 512
)

// evictEvery is the minimum interval of evictions.
const evictEvery = time.Second

// makeRoom returns an error if there is no space for bytes more, even after evicting announcements of instances that
// have never sent a heartbeat.
func (f *core) makeRoom(bytes int, now time.Time) error {
	if f.size+bytes > f.room && now.Sub(f.evicted) >= evictEvery {
		f.evicted = now
		f.evict(f.room*3/4 - bytes)
	}
	if f.size+bytes > f.room {
		return fmt.Errorf("the registry has stored %d of the %d bytes that its memory limit allows", f.size, f.room)
	}
	return nil
}

// evict removes announcements of instances that have never sent a heartbeat, starting with the extension that uses
// the most memory, until at most target bytes are stored.
func (f *core) evict(target int) {
	before := f.size
	largest := slices.SortedFunc(maps.Values(f.exts), func(a, b *extension) int {
		return cmp.Or(cmp.Compare(b.kept, a.kept), cmp.Compare(a.id, b.id))
	})
	for _, x := range largest {
		if f.size <= target {
			break
		}
		f.evictSilent(x)
	}
	f.log(slog.LevelWarn, "evicted announcements of instances that never sent a heartbeat", "bytes", before-f.size, "kept", f.size)
}

// evictSilent removes the announcements of x's instances that have never sent a heartbeat, and x itself if nothing
// else is left.
func (f *core) evictSilent(x *extension) {
	health, _ := f.mon.Extension(x.id)
	seen := map[string]bool{"": len(health.Instances) > 0} // an announcement without an instance counts for all of them
	for _, i := range health.Instances {
		seen[i.Instance] = true
	}
	for name := range x.announcements {
		if !seen[name] {
			f.removeAnnouncement(x, name)
			f.removeLocation(x, name)
		}
	}
	f.prune(x)
	if len(x.announcements) == 0 && f.empty(x.id) {
		if c, ok := f.mon.Forget(x.id); ok {
			f.changed(c)
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
	sum := a.text() + x.announcedText()
	if old != nil {
		sum -= old.text()
	}
	if sum > maxPerID {
		return fmt.Errorf("the announcements of this extension would take %d bytes, over the limit of %d", sum, maxPerID)
	}
	return nil
}

// announcedText is about the sum of text of x's announcements. It is derived from the counted memory: adding up the
// announcements would make a flood of them cost their number squared.
func (x *extension) announcedText() int {
	return max(0, x.kept-extensionRoom-x.offered()-len(x.announcements)*announceRoom)
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
	for _, list := range [][]string{a.Features, a.Capabilities.Channels, a.Capabilities.Providers} {
		for _, s := range list {
			sum += len(s) + 24 // including 16 for the slice
		}
	}
	return sum
}
