package discovery

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// sum stands for a file's content: its SHA-256, or that of the reason why it cannot be read, since a manifest that
// becomes unreadable has changed too.
type sum [sha256.Size]byte

func sumOf(file string) sum {
	data, err := readRegular(file)
	if err != nil {
		data = fmt.Appendf(nil, "\x00%v", reason(err))
	}
	return sha256.Sum256(data)
}

// refresh walks the roots, watches each directory before it is read, so that nothing slips between the two, and
// returns what is not as it was.
func (w *watcher) refresh(ctx context.Context) ([]Change, error) {
	began := time.Now()
	if err := w.reopen(); err != nil {
		return nil, err
	}
	before := w.dirs
	w.dirs = make(map[string]int, len(before))
	walk := newWalker(w.opt.IgnoreDirs, w.opt.MaxDepth, w.opt.FollowLinks)
	walk.enter = func(s step) error { return w.watch(s.dir, s.depth) }
	w.roots = canonical(w.opt.Roots, nil, &walk.findings)
	walk.walk(ctx, w.roots)
	if walk.err != nil {
		return nil, walk.err
	}
	files, err := w.read(ctx, walk)
	if err != nil {
		return nil, err
	}
	for dir := range before {
		if w.dirs[dir] == 0 {
			w.fs.Remove(dir) // gone or out of reach; if gone, the watch is too, and the error says so
		}
	}
	partial := walk.incomplete || ctx.Err() != nil
	w.again = partial && walk.left >= 0 // over the limit it will be the next time, too
	changes := w.compare(files, partial)
	// Where a walk is slow, because there is much or because the disk is, do not spend all the time walking.
	w.quiet = max(w.opt.Debounce, 4*time.Since(began))
	return changes, nil
}

// reopen drops all watches if they are stale. One by one would not do: there is no telling which inode a watch
// is on, and taking one off the old name would take it off the new.
func (w *watcher) reopen() error {
	if !w.stale {
		return nil
	}
	if w.fs != nil {
		w.fs.Close()
	}
	var err error
	if w.fs, err = fsnotify.NewWatcher(); err != nil {
		return fmt.Errorf("watching for manifests (is fs.inotify.max_user_instances too low?): %w", err)
	}
	w.stale, w.dirs = false, nil
	return nil
}

// read sums what the walk found.
func (w *watcher) read(ctx context.Context, walk *walker) (map[string]sum, error) {
	w.links = set(walk.links)
	files := make(map[string]sum, len(walk.places))
	for _, p := range walk.places {
		for name, file := range map[string]string{manifest.FileName: p.file, manifest.SidecarName: p.sidecar} {
			if file == "" || ctx.Err() != nil {
				continue
			}
			path := filepath.Join(p.dir, name)
			if file != path {
				w.links[file] = true
				if dir := filepath.Dir(file); w.dirs[dir] == 0 {
					if err := w.watch(dir, maxDirDepth); err != nil {
						return nil, err
					}
				}
			}
			files[path] = sumOf(file)
		}
	}
	return files, nil
}

// maxDirDepth marks a directory that is watched for one file in it only: nothing below it is entered.
const maxDirDepth = 1 << 30

// compare replaces the old picture by files and returns the difference. What a partial picture does not show need
// not be gone.
func (w *watcher) compare(files map[string]sum, partial bool) []Change {
	var changes []Change
	for path, now := range files {
		if was, known := w.files[path]; !known {
			changes = append(changes, Change{path, Added})
		} else if was != now {
			changes = append(changes, Change{path, Changed})
		}
	}
	for path, was := range w.files {
		if _, there := files[path]; there {
			continue
		}
		if partial {
			files[path] = was
		} else {
			changes = append(changes, Change{path, Removed})
		}
	}
	w.files = files
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}
