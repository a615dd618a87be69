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

// MaxWatches is how many directories Watch watches; each costs the kernel about a kilobyte, and the whole host has
// one limit for them.
const MaxWatches = 65_536

// DefaultDebounce is the Debounce of options that say none.
const DefaultDebounce = 500 * time.Millisecond

// rootPoll is how often the roots themselves are looked at, which nothing watches: one may be made after the watch
// began, be moved away with all its parents, or be a link to the release of the day.
const rootPoll = 2 * time.Second

// WatchOptions say what to watch; those that Options has too mean the same.
type WatchOptions struct {
	Roots       []string // Options.Roots and Links together
	IgnoreDirs  []string
	MaxDepth    int
	FollowLinks bool
	// Debounce is how long it must be quiet before changes are reported; under steady changes they are reported
	// after ten times as long. 0 means DefaultDebounce.
	Debounce time.Duration
	// Ready, if set, is called once, when everything is watched: what changes from then on is reported. Who needs
	// to miss nothing scans in it.
	Ready func()
}

// ChangeKind is what happened to a file.
type ChangeKind string

// The kinds of change. Added and Removed also stand for a manifest's coming into reach and going out of it.
const (
	Added   ChangeKind = "added"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
)

// Change is a change of a plugin.toml, or of an .mcp.json beside one.
type Change struct {
	Path string // canonical
	Kind ChangeKind
}

// Watch calls report with what changed below the roots, until ctx ends; then it returns nil. Only manifests and
// sidecars count, and only their content: a file that was touched, replaced by an equal one, or is back as it was
// by the time of the report has not changed. Changes are sorted by path; those that follow on each other within
// Debounce come in one report.
//
// Ready and report are called from the goroutine that called Watch, never at the same time. While report runs, the
// kernel keeps what happens; should it lose some of it, everything is read again.
//
// A root that is not there is waited for. The error is that of the system's refusing to watch, or of there being
// more than MaxWatches directories.
func Watch(ctx context.Context, opt WatchOptions, report func([]Change)) error {
	return newWatcher(opt, report).run(ctx)
}

// watcher is a Watch. Events only tell it that, not what, something changed: it then walks the roots as Scan does
// and compares. That is some milliseconds for a hundred extensions, and there is no way for the two to disagree,
// nor for an event that was lost, late or out of order to leave a wrong picture behind.
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
	stale bool            // the watches may be on other directories than their names say
	again bool            // the last picture was incomplete
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
			// Most likely an overflow: events are missing, perhaps the one that says a directory was renamed.
			w.stale = true
			due.arm(w.quiet)
		case <-poll.C:
			// Not again while it is due, which would put it off.
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

// concerns reports whether an event may have changed what a walk finds. It keeps a program that writes to its own
// directory from causing one.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name, dir := filepath.Base(e.Name), filepath.Dir(e.Name)
	if _, known := w.dirs[e.Name]; known {
		// The watches below a directory that was renamed go on, under the old names.
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

// rootsMoved reports whether a root is another directory than before.
func (w *watcher) rootsMoved() bool {
	now := canonical(w.opt.Roots, nil, &findings{})
	moved := len(now) != len(w.roots)
	for i := 0; i < len(now) && !moved; i++ {
		moved = now[i].dir != w.roots[i].dir || !os.SameFile(now[i].info, w.roots[i].info)
	}
	w.stale = w.stale || moved
	return moved
}

// watch adds a watch; dir may be gone, which its parent's watch tells.
func (w *watcher) watch(dir string, depth int) error {
	if w.dirs[dir] = depth; len(w.dirs) > w.maxWatches {
		return fmt.Errorf("watching for manifests: there are more than %d directories; name smaller roots, lower max_depth, or add to ignore_dirs", w.maxWatches)
	}
	switch err := w.fs.Add(dir); {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("watching for manifests: the system allows no watch beyond the %d that stand; raise fs.inotify.max_user_watches, lower max_depth, or add to ignore_dirs: %w", len(w.dirs)-1, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, fsnotify.ErrClosed):
		return fmt.Errorf("watching for manifests: %w", err)
	default:
		// Gone or not readable; the walk meets the same, and the next poll tries again if it is worth it.
		return nil
	}
}

// timer fires when nothing armed it for a while, but not later than ten whiles after it was first armed.
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

// c is nil, which blocks, while the timer is not armed.
func (t *timer) c() <-chan time.Time {
	if t.t == nil {
		return nil
	}
	return t.t.C
}
