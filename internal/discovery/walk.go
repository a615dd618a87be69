package discovery

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// MaxEntries is the number of directory entries that a scan reads, over all roots; then it stops with an Error, so
// that a root set to / by mistake causes a diagnostic instead of a scan of hours.
const MaxEntries = 1_000_000

// TempPrefix begins the names of the directories in which extctl install and uninstall keep unfinished and removed
// extensions; they are not entered.
const TempPrefix = ".extmesh-"

// location is a directory with a manifest, a sidecar or both.
type location struct {
	dir     string
	file    string // the manifest to read: dir/plugin.toml, or what that links to; empty: none
	sidecar string // the .mcp.json to read, in the same way
	root    int
}

// path is the file that makes the directory an extension.
func (p location) path() string {
	if p.file == "" && p.sidecar != "" {
		return filepath.Join(p.dir, manifest.SidecarName)
	}
	return filepath.Join(p.dir, manifest.FileName)
}

// walker finds the locations below roots.
//
// It walks breadth first, so that a directory with two paths, one of them through a link, is visited at its lowest
// depth. One set of visited directories therefore breaks loops without hiding anything below the directory.
type walker struct {
	ignore   map[string]bool
	maxDepth int
	follow   bool

	roots     []root
	left      int             // of MaxEntries
	visited   map[string]bool // directories visited in the root being walked
	taken     map[string]bool // directories of all locations
	locations []location      // by root, then path
	scanned   int
	refused   int // manifests that must not be read
	skipped   int // links not followed
	stopped   bool
	findings
}

func newWalker(ignore []string, maxDepth int, follow bool) *walker {
	return &walker{
		ignore: set(ignore), maxDepth: cmp.Or(maxDepth, DefaultMaxDepth), follow: follow,
		left: MaxEntries, taken: map[string]bool{},
	}
}

// step is a directory to read.
type step struct {
	dir   string
	depth int // of a manifest in it: 1 in the root
}

func (w *walker) walk(ctx context.Context, roots []root) {
	w.roots = roots
	for _, r := range roots {
		from := len(w.locations)
		w.visited = map[string]bool{r.dir: true}
		for queue := []step{{r.dir, 1}}; len(queue) > 0 && !w.stopped; queue = queue[1:] {
			if err := context.Cause(ctx); err != nil {
				w.stop(queue[0].dir, "the scan was interrupted here: %v", err)
				break
			}
			queue = append(queue, w.read(r, queue[0])...)
		}
		slices.SortFunc(w.locations[from:], func(a, b location) int { return strings.Compare(a.dir, b.dir) })
	}
	if more := w.skipped - maxSkippedLinks; more > 0 {
		w.add(manifest.Info, roots[0].dir, "", "%d more symbolic links were skipped, in all roots together", more)
	}
}

func (w *walker) stop(dir, format string, args ...any) {
	w.stopped, w.incomplete = true, true
	w.add(manifest.Error, dir, "", format, args...)
}

// read reads one directory and returns those below it.
func (w *walker) read(r root, s step) []step {
	entries, err := w.entries(s.dir)
	if err != nil {
		w.incomplete = w.incomplete || !lasting(err)
		w.add(manifest.Warn, s.dir, "", "the directory cannot be read and is skipped: %v", document.Reason(err))
		return nil
	}
	w.scanned++
	var below []step
	var file, sidecar fs.DirEntry
	for _, e := range entries {
		switch {
		case e.Name() == manifest.FileName:
			file = e
		case e.Name() == manifest.SidecarName:
			sidecar = e
		case w.ignore[e.Name()] || strings.HasPrefix(e.Name(), TempPrefix) || strings.HasPrefix(e.Name(), "..") || s.depth >= w.maxDepth:
			// Not entered. Kubernetes mounts a ConfigMap as links to ..2026_11_27…, which the next update deletes.
		case e.IsDir():
			below = w.descend(below, step{filepath.Join(s.dir, e.Name()), s.depth + 1})
		default:
			if dir := w.linkedDir(r, s.dir, e.Name()); dir != "" {
				below = w.descend(below, step{dir, s.depth + 1})
			}
		}
	}
	if file != nil || sidecar != nil {
		w.addLocation(r, s.dir, file, sidecar)
	}
	return below
}

// addLocation records the manifest in dir, unless it is a link that must not be read or an earlier root contains it. Of
// a directory without a manifest it records the sidecar.
func (w *walker) addLocation(r root, dir string, file, sidecar fs.DirEntry) {
	if w.taken[dir] {
		return
	}
	w.taken[dir] = true
	p := location{dir: dir, root: r.index}
	broken := manifest.Error // for the file that makes the directory an extension
	if file != nil {
		if p.file = w.linkedFile(r, dir, file, broken); p.file == "" {
			return
		}
		broken = manifest.Warn
	}
	if sidecar != nil {
		p.sidecar = w.linkedFile(r, dir, sidecar, broken)
	}
	if p.file != "" || p.sidecar != "" {
		w.locations = append(w.locations, p)
	}
}

func (w *walker) descend(below []step, s step) []step {
	if w.visited[s.dir] {
		return below
	}
	w.visited[s.dir] = true
	return append(below, s)
}

// entries returns the directories, links, manifest and sidecar in dir, sorted by name. Others are only counted, so
// that a directory with a million files does not fill the memory.
func (w *walker) entries(dir string) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []fs.DirEntry
	for {
		batch, err := f.ReadDir(min(1024, w.left+1))
		for _, e := range batch {
			if e.IsDir() || e.Type()&fs.ModeSymlink != 0 || e.Name() == manifest.FileName || e.Name() == manifest.SidecarName {
				out = append(out, e)
			}
		}
		if w.left -= len(batch); w.left < 0 {
			w.stop(dir, "the scan stops here after %d directory entries, and does not read the rest; configure smaller roots, lower max_depth, or add to ignore_dirs", MaxEntries)
			return nil, nil
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}
