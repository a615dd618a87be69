package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// MaxWatches is the number of directories that Watch watches. Each costs about a kilobyte of kernel memory, and the
// host has one limit for all programs.
const MaxWatches = 65_536

// DefaultDebounce is used if Debounce is 0.
const DefaultDebounce = 500 * time.Millisecond

// rootPoll is the interval at which the roots themselves are checked, because no watch covers them: a root may be
// created later, moved with its parents, or be a link that changes with each release.
const rootPoll = 2 * time.Second

// WatchOptions configure Watch; the fields that Options has too have the same meaning.
type WatchOptions struct {
	Roots       []string // Options.Roots and Links together
	IgnoreDirs  []string
	MaxDepth    int
	FollowLinks bool
	// Debounce is the time without changes before a report; under steady changes they are reported after ten times
	// that. 0 means DefaultDebounce.
	Debounce time.Duration
	// Ready, if set, is called once, when all directories are watched: later changes are reported. A caller that must
	// not miss any change scans in Ready.
	Ready func()
}

// ChangeKind is the kind of a Change.
type ChangeKind string

// The kinds of change. A manifest that comes into reach is Added, and one that goes out of reach is Removed.
const (
	Added   ChangeKind = "added"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
)

// Change is a change of a plugin.toml or an .mcp.json.
type Change struct {
	Path string // canonical
	Kind ChangeKind
}

// Watch calls report with the changes below the roots until ctx ends; then it returns nil. Only the contents of
// manifests and sidecars count: a file that was touched, replaced by an equal one, or changed back before the report
// has not changed. Changes are sorted by path; changes that follow each other within Debounce come in one report.
//
// Ready and report are called on the goroutine that called Watch, never concurrently. While report runs, the kernel
// queues events; if the queue overflows, everything is read again.
//
// Watch waits for roots that do not exist. It returns an error if the system refuses to watch, or if there are more
// than MaxWatches directories.
func Watch(ctx context.Context, opt WatchOptions, report func([]Change)) error {
	return newWatcher(opt, report).run(ctx)
}

// watcher implements Watch. An event only shows that something has changed, not what: the watcher then walks the
// roots like Scan and compares the result. That takes some milliseconds for a hundred extensions, gives the same
// result as Scan, and cannot be confused by lost, late or reordered events.
type watcher struct {
	opt        WatchOptions
	report     func([]Change)
	poll       time.Duration
	maxWatches int

	fs    *fsnotify.Watcher
	roots []root
	dirs  map[string]int  // directories watched, and their depth
	links map[string]bool // links followed, and the files they lead to
	files map[string]sum  // manifests and sidecars
	stale bool            // watches may be on other directories than their names
	again bool            // the last walk was incomplete
	quiet time.Duration   // how long to wait for more events
}

func newWatcher(opt WatchOptions, report func([]Change)) *watcher {
	opt.Debounce = cmp.Or(opt.Debounce, DefaultDebounce)
	opt.MaxDepth = cmp.Or(opt.MaxDepth, DefaultMaxDepth)
	return &watcher{opt: opt, report: report, poll: rootPoll, maxWatches: MaxWatches}
}

func (w *watcher) run(ctx context.Context) error {
	defer func() {
		if w.fs != nil {
			w.fs.Close()
		}
	}()
	w.stale, w.files = true, map[string]sum{}
	if _, err := w.refresh(ctx); err != nil {
		return err
	}
	if w.opt.Ready != nil && ctx.Err() == nil {
		w.opt.Ready()
	}
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	var due timer
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.fs.Events:
			if w.concerns(event) {
				due.arm(w.quiet)
			}
		case <-w.fs.Errors:
			// Most likely an overflow: events are missing, perhaps one about a renamed directory.
			w.stale = true
			due.arm(w.quiet)
		case <-poll.C:
			// Do not arm it again while it is armed, which would delay it.
			if due.c() == nil && (w.again || w.rootsMoved()) {
				due.arm(w.quiet)
			}
		case <-due.c():
			due.disarm()
			changes, err := w.refresh(ctx)
			if err != nil {
				return err
			}
			if len(changes) > 0 && ctx.Err() == nil {
				w.report(changes)
			}
		}
	}
}

// concerns reports whether an event may have changed the result of a walk. It prevents walks caused by a program that
// writes to its own directory.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name, dir := filepath.Base(e.Name), filepath.Dir(e.Name)
	if _, known := w.dirs[e.Name]; known {
		// The watches below a renamed directory continue under the old names.
		w.stale = w.stale || e.Has(fsnotify.Rename)
		return true
	}
	if name == manifest.FileName || name == manifest.SidecarName || w.links[e.Name] {
		return true
	}
	depth := w.dirs[dir]
	if !e.Has(fsnotify.Create) || depth == 0 || depth >= w.opt.MaxDepth {
		return false
	}
	info, err := os.Lstat(e.Name)
	return err == nil && (info.IsDir() || w.opt.FollowLinks && info.Mode()&fs.ModeSymlink != 0)
}

// rootsMoved reports whether a root is a different directory than before.
func (w *watcher) rootsMoved() bool {
	now := canonical(w.opt.Roots, nil, &findings{})
	moved := len(now) != len(w.roots)
	for i := 0; i < len(now) && !moved; i++ {
		moved = now[i].dir != w.roots[i].dir || !os.SameFile(now[i].info, w.roots[i].info)
	}
	w.stale = w.stale || moved
	return moved
}

// watch adds a watch. dir may have been removed; the watch of its parent reports that.
func (w *watcher) watch(dir string, depth int) error {
	if w.dirs[dir] = depth; len(w.dirs) > w.maxWatches {
		return fmt.Errorf("watching for manifests: there are more than %d directories; configure smaller roots, lower max_depth, or add to ignore_dirs", w.maxWatches)
	}
	switch err := w.fs.Add(dir); {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("watching for manifests: the limit of inotify watches is reached after %d; raise fs.inotify.max_user_watches, lower max_depth, or add to ignore_dirs: %w", len(w.dirs)-1, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, fsnotify.ErrClosed):
		return fmt.Errorf("watching for manifests: %w", err)
	default:
		// Gone or not readable: the walk has the same error, and the next poll tries again if that is useful.
		return nil
	}
}

// timer fires when it was not armed for a while, but at most ten such times after it was first armed.
type timer struct {
	t     *time.Timer
	limit time.Time
}

func (t *timer) arm(quiet time.Duration) {
	now := time.Now()
	if t.t == nil {
		t.t, t.limit = time.NewTimer(quiet), now.Add(10*quiet)
		return
	}
	t.t.Reset(min(quiet, t.limit.Sub(now)))
}

func (t *timer) disarm() { *t = timer{} }

// c returns nil, which blocks, while the timer is not armed.
func (t *timer) c() <-chan time.Time {
	if t.t == nil {
		return nil
	}
	return t.t.C
}
