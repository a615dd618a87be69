package discovery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// DefaultDebounce is used if Debounce is 0.
const DefaultDebounce = 500 * time.Millisecond

// The pause between two looks at the files is lookShare times as long as a look takes, so that watching costs about one
// percent of a processor. It has limits: with few extensions Watch does not run all the time, and on a slow disk a change is
// found in the end.
const (
	lookShare     = 100
	shortestPause = time.Second
	longestPause  = 30 * time.Second
)

// WatchOptions configure Watch; the fields that Options has too have the same meaning.
type WatchOptions struct {
	Roots       []string // Options.Roots and Links together
	IgnoreDirs  []string
	MaxDepth    int
	FollowLinks bool
	// Debounce is the time from the look that finds a change to the call of changed, which is for all changes up to then. 0
	// means DefaultDebounce.
	Debounce time.Duration
	// Ready, if set, is called once, after the first look: changed is called for later changes. A caller that must not miss any
	// change scans in Ready.
	Ready func()
}

// Watch calls changed after a change below the roots, until ctx ends. Only the contents of manifests and sidecars count:
// a file that was touched, replaced by an equal one, or changed back before the call has not changed.
//
// Watch looks at the files again and again, and requests no events from the system: a change is found within a second on
// most hosts, and within 30 seconds in very large trees or on slow disks. This works in the same way on all systems, on
// network file systems, and for roots that do not exist yet or are links that change with each release.
//
// Ready and changed are called on the goroutine that called Watch, never concurrently.
func Watch(ctx context.Context, opt WatchOptions, changed func()) {
	opt.Debounce = cmp.Or(opt.Debounce, DefaultDebounce)
	w := &watcher{opt: opt}
	w.files = w.look(ctx)
	if opt.Ready != nil && ctx.Err() == nil {
		opt.Ready()
	}
	for wait(ctx, w.pause) {
		if maps.Equal(w.files, w.look(ctx)) {
			continue
		}
		if !wait(ctx, opt.Debounce) { // the change may be incomplete, or one of several
			return
		}
		before := w.files
		w.files = w.look(ctx)
		if !maps.Equal(before, w.files) && ctx.Err() == nil {
			changed()
		}
	}
}

// wait returns false if ctx ends before d is over.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watcher is the state of Watch.
type watcher struct {
	opt   WatchOptions
	files map[string]sum // manifests and sidecars, as last compared
	took  time.Duration  // by the last look
	pause time.Duration  // until the next one
}

// look returns the manifests and sidecars as they are now. It walks the roots like Scan and reads every file. It does not
// compare sizes and times, because some programs keep the times of a file that they change; the walk costs most of the time
// anyway.
func (w *watcher) look(ctx context.Context) map[string]sum {
	began := time.Now()
	walk := newWalker(w.opt.IgnoreDirs, w.opt.MaxDepth, w.opt.FollowLinks)
	walk.walk(ctx, canonical(w.opt.Roots, nil, &walk.findings))
	files := make(map[string]sum, len(walk.locations))
	for _, p := range walk.locations {
		if ctx.Err() != nil {
			break
		}
		if p.file != "" {
			files[filepath.Join(p.dir, manifest.FileName)] = sumOf(p.file)
		}
		if p.sidecar != "" {
			files[filepath.Join(p.dir, manifest.SidecarName)] = sumOf(p.sidecar)
		}
	}
	if walk.incomplete || ctx.Err() != nil {
		keepMissing(files, w.files)
	}
	took := time.Since(began)
	w.pause = pauseAfter(min(took, w.took)) // after one slow look, such as the first one, the next can be quick
	w.took = took
	return files
}

// keepMissing adds to files what only before has: an incomplete walk does not show that a file was removed.
func keepMissing(files, before map[string]sum) {
	for path, s := range before {
		if _, there := files[path]; !there {
			files[path] = s
		}
	}
}

// pauseAfter returns the pause after a look that took this long.
func pauseAfter(look time.Duration) time.Duration {
	return min(max(lookShare*look, shortestPause), longestPause)
}

// sum identifies a file's content. It is the SHA-256 of the content, or of the error if the file cannot be read, so
// that a manifest that becomes unreadable counts as changed.
type sum [sha256.Size]byte

func sumOf(file string) sum {
	data, err := document.ReadFile(file)
	if err != nil {
		data = fmt.Appendf(nil, "\x00%v", document.Reason(err))
	}
	return sha256.Sum256(data)
}
