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

// sum identifies a file's content. It is the SHA-256 of the content, or of the error if the file cannot be read, so
// that a manifest that becomes unreadable counts as changed.
type sum [sha256.Size]byte

func sumOf(file string) sum {
	data, err := readRegular(file)
	if err != nil {
		data = fmt.Appendf(nil, "\x00%v", reason(err))
	}
	return sha256.Sum256(data)
}

// refresh walks the roots and returns the changes since the last time. It watches each directory before reading it,
// so that no change between the two is lost.
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
			w.fs.Remove(dir) // gone or out of reach; if it is gone, so is its watch, and the error can be ignored
		}
	}
	partial := walk.incomplete || ctx.Err() != nil
	w.again = partial && walk.left >= 0 // a walk over the limit will be over it next time, too
	changes := w.compare(files, partial)
	// If a walk is slow, because of the size or the disk, wait long enough that most of the time is not spent walking.
	w.quiet = max(w.opt.Debounce, 4*time.Since(began))
	return changes, nil
}

// reopen drops all watches if they are stale. Dropping single ones would not work: a watch may be on a renamed inode,
// and removing it by its old name could remove the watch of another directory that has this name now.
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

// read computes the sums of the files that the walk found.
func (w *watcher) read(ctx context.Context, walk *walker) (map[string]sum, error) {
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

// maxDirDepth marks a directory that is watched only for one file in it; nothing below it is entered.
const maxDirDepth = 1 << 30

// compare replaces the stored files by files and returns the difference. Files missing from a partial result are
// kept.
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
