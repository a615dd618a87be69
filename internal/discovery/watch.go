package discovery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// MaxWatches is the number of directories that Watch watches; further ones are read again every two seconds. Each costs
// about a kilobyte of kernel memory, and the host has one limit for all programs.
const MaxWatches = 65_536

// DefaultDebounce is used if Debounce is 0.
const DefaultDebounce = 500 * time.Millisecond

// pollEvery is the interval at which the roots themselves are checked, because no watch covers them: a root may be
// created later, moved with its parents, or be a link that changes with each release. The times of the manifests are checked,
// too, because some file systems report no changes made elsewhere (NFS, Windows's in WSL). If the system does not watch a
// directory, everything is read again at this interval.
const pollEvery = 2 * time.Second

// maxDelay is the longest time between a change and the walk that reports it, unless Debounce is longer.
const maxDelay = 30 * time.Second

// WatchOptions configure Watch; the fields that Options has too have the same meaning.
type WatchOptions struct {
	Roots       []string // Options.Roots and Links together
	IgnoreDirs  []string
	MaxDepth    int
	FollowLinks bool
	// Debounce is the time from the first change to the report, which has all changes up to then. 0 means
	// DefaultDebounce.
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

// Watch calls report with the changes below the roots until ctx ends. Only the contents of manifests and sidecars count:
// a file that was touched, replaced by an equal one, or changed back before the report has not changed. Changes are
// sorted by path.
//
// Ready and report are called on the goroutine that called Watch, never concurrently. Roots need not exist yet.
func Watch(ctx context.Context, opt WatchOptions, report func([]Change)) {
	newWatcher(opt, report).run(ctx)
}

// watcher implements Watch. An event only shows that something has changed, not what: the watcher then walks the
// roots like Scan, watches what it visits with a new fsnotify.Watcher, and compares the files. That takes some
// milliseconds for a hundred extensions, gives the same result as Scan, and cannot be confused by lost, late or
// reordered events, or by watches that follow a renamed directory.
type watcher struct {
	opt        WatchOptions
	report     func([]Change)
	poll       time.Duration
	maxWatches int

	fs    *fsnotify.Watcher // nil if the system has no more
	roots []root
	dirs  map[string]bool  // directories watched
	links map[string]bool  // links followed, and the files they lead to
	files map[string]sum   // manifests and sidecars
	seen  map[string]stamp // of roots and files, at the last walk
	again bool             // the last walk was incomplete, or not everything is watched
	delay time.Duration    // from an event to the next walk
}

func newWatcher(opt WatchOptions, report func([]Change)) *watcher {
	opt.Debounce = cmp.Or(opt.Debounce, DefaultDebounce)
	opt.MaxDepth = cmp.Or(opt.MaxDepth, DefaultMaxDepth)
	return &watcher{opt: opt, report: report, poll: pollEvery, maxWatches: MaxWatches, files: map[string]sum{}}
}

func (w *watcher) run(ctx context.Context) {
	defer w.close()
	w.rescan(ctx)
	if w.opt.Ready != nil && ctx.Err() == nil {
		w.opt.Ready()
	}
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	var due <-chan time.Time // set while a walk is due
	for {
		events, failures := w.events()
		changed := false
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			changed = w.concerns(event)
		case <-failures: // most likely an overflow: events are missing
			changed = true
		case <-poll.C:
			changed = w.again || w.rootsMoved() || !maps.Equal(w.seen, w.stamps())
		case <-due:
			due = nil
			if changes := w.rescan(ctx); len(changes) > 0 && ctx.Err() == nil {
				w.report(changes)
			}
		}
		if changed && due == nil {
			due = time.After(w.delay)
		}
	}
}

func (w *watcher) events() (<-chan fsnotify.Event, <-chan error) {
	if w.fs == nil {
		return nil, nil
	}
	return w.fs.Events, w.fs.Errors
}

func (w *watcher) close() {
	if w.fs != nil {
		w.fs.Close()
	}
}

// concerns reports whether an event may have changed the result of a walk. It prevents walks caused by a program that
// writes to its own directory.
func (w *watcher) concerns(e fsnotify.Event) bool {
	if name := filepath.Base(e.Name); name == manifest.FileName || name == manifest.SidecarName || w.dirs[e.Name] || w.links[e.Name] {
		return true
	}
	if !e.Has(fsnotify.Create) {
		return false
	}
	info, err := os.Lstat(e.Name)
	return err == nil && (info.IsDir() || w.opt.FollowLinks && info.Mode()&fs.ModeSymlink != 0)
}

// rootsMoved reports whether a root is a different directory than before.
func (w *watcher) rootsMoved() bool {
	now := canonical(w.opt.Roots, nil, &findings{})
	return !slices.EqualFunc(now, w.roots, func(a, b root) bool { return a.dir == b.dir && os.SameFile(a.info, b.info) })
}

// stamp is what changes with a file or with the entries of a directory.
type stamp struct {
	size int64
	mod  time.Time
}

// stamps returns the stamps of the roots, and of the manifests and sidecars.
func (w *watcher) stamps() map[string]stamp {
	out := make(map[string]stamp, len(w.roots)+len(w.files))
	add := func(path string) {
		if info, err := os.Stat(path); err == nil {
			out[path] = stamp{info.Size(), info.ModTime()}
		}
	}
	for _, r := range w.roots {
		if _, isOne := w.files[filepath.Join(r.dir, manifest.FileName)]; !isOne { // an extension may write to its own directory
			add(r.dir)
		}
	}
	for path := range w.files {
		add(path)
	}
	return out
}

// rescan walks the roots and returns the changes since the last time. It watches each directory before reading it, so
// that no change between the two is lost.
func (w *watcher) rescan(ctx context.Context) []Change {
	began, before := time.Now(), w.stamps()
	w.close()
	w.again = false
	var err error
	if w.fs, err = fsnotify.NewWatcher(); err != nil {
		w.fs, w.again = nil, true
	}
	w.dirs = map[string]bool{}
	walk := newWalker(w.opt.IgnoreDirs, w.opt.MaxDepth, w.opt.FollowLinks)
	walk.enter = w.watch
	w.roots = canonical(w.opt.Roots, nil, &walk.findings)
	walk.walk(ctx, w.roots)
	files := w.read(ctx, walk)
	partial := walk.incomplete || ctx.Err() != nil
	w.again = w.again || partial && walk.left >= 0 // a walk over the limit will be over it next time, too
	// If a walk is slow, because of the size or the disk, wait long enough that most of the time is not spent walking. A host
	// that was suspended during the walk has no reason to wait longer.
	w.delay = max(w.opt.Debounce, min(4*time.Since(began), maxDelay))
	changes := w.compare(files, partial)
	w.seen = w.stamps()
	for path := range w.seen {
		if s, ok := before[path]; ok { // it may have changed after it was read
			w.seen[path] = s
		}
	}
	return changes
}

// watch adds a watch. dir may have been removed; the watch of its parent reports that.
func (w *watcher) watch(dir string) {
	if w.fs == nil || w.dirs[dir] {
		return
	}
	if len(w.dirs) >= w.maxWatches {
		w.again = true
		return
	}
	w.dirs[dir] = true
	if err := w.fs.Add(dir); err != nil && !lasting(err) {
		w.again = true // for example because the limit of the system is reached
	}
}

// read computes the sums of the files that the walk found.
func (w *watcher) read(ctx context.Context, walk *walker) map[string]sum {
	w.links = set(walk.links)
	files := make(map[string]sum, len(walk.locations))
	for _, p := range walk.locations {
		for name, file := range map[string]string{manifest.FileName: p.file, manifest.SidecarName: p.sidecar} {
			if file == "" || ctx.Err() != nil {
				continue
			}
			path := filepath.Join(p.dir, name)
			if file != path {
				w.links[file] = true
				w.watch(filepath.Dir(file))
			}
			files[path] = sumOf(file)
		}
	}
	return files
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

// compare replaces the stored files by files and returns the difference. Files missing from a partial result are
// kept.
func (w *watcher) compare(files map[string]sum, partial bool) []Change {
	if partial {
		missing := maps.Clone(w.files)
		maps.Copy(missing, files)
		files = missing
	}
	var changes []Change
	for path, now := range files {
		if was, known := w.files[path]; !known {
			changes = append(changes, Change{path, Added})
		} else if was != now {
			changes = append(changes, Change{path, Changed})
		}
	}
	for path := range w.files {
		if _, there := files[path]; !there {
			changes = append(changes, Change{path, Removed})
		}
	}
	w.files = files
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}
