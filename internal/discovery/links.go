package discovery

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// maxSkippedLinks bounds the diagnostics about links that are not followed; some package managers make thousands.
const maxSkippedLinks = 100

// linkedFile is the path to read for a manifest or sidecar, which may be a link; empty if it is not to be read. A
// link that leads nowhere is reported at level broken.
func (w *walker) linkedFile(r root, dir string, e fs.DirEntry, broken manifest.Level) string {
	path := filepath.Join(dir, e.Name())
	if e.Type()&fs.ModeSymlink == 0 {
		return path
	}
	if !w.follow {
		w.skipLink(path)
		return ""
	}
	target, err := filepath.EvalSymlinks(path)
	if err == nil && within(r.dir, target) {
		w.links = append(w.links, path)
		return target
	}
	if broken == manifest.Error {
		w.refused++
	}
	if err != nil {
		w.add(broken, path, "", "the symbolic link leads nowhere: %v", reason(err))
	} else {
		w.escape(r, path, target)
	}
	return ""
}

// linkedDir is the directory that the link dir/name leads to; empty if it is no directory or not to be entered.
func (w *walker) linkedDir(r root, dir, name string) string {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return ""
	}
	target := ""
	if err == nil {
		target, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err == nil && w.elsewhere(r, path, target):
		// walked there
	case !w.follow:
		w.skipLink(path)
	case err != nil:
		w.add(manifest.Warn, path, "", "the symbolic link leads nowhere: %v", reason(err))
	case !within(r.dir, target):
		w.escape(r, path, target)
	case within(target, dir):
		w.add(manifest.Info, path, "", "the symbolic link leads back to %s, above it, and is skipped", target)
	case w.ignore[filepath.Base(target)]:
		// not entered
	default:
		w.links = append(w.links, path)
		return target
	}
	return ""
}

// elsewhere reports whether a link out of r leads into one of Options.Links. It is no escape then: the operator has
// written down that the extension is meant, and it is found there (docs/decisions/0007). Another of Options.Roots
// does not excuse it: that is a place to look, and no word about this link.
func (w *walker) elsewhere(r root, path, target string) bool {
	if within(r.dir, target) {
		return false
	}
	for _, other := range w.roots {
		if other.link && within(other.dir, target) {
			w.add(manifest.Info, path, "", "the symbolic link leads to %s, which is looked at by itself, being in links", target)
			return true
		}
	}
	return false
}

func (w *walker) skipLink(path string) {
	if w.skipped++; w.skipped <= maxSkippedLinks {
		w.add(manifest.Info, path, "", "a symbolic link, skipped; set follow_links to follow those that stay within their root, or list its target in links")
	}
}

func (w *walker) escape(r root, path, target string) {
	w.add(manifest.Error, path, "", "the symbolic link leads out of the root %s to %s and is not followed; move the target into the root, or list it in links", r.dir, target)
}

// within reports whether path is dir or lies below it; both are canonical.
func within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator)))
	return ok && (rest == "" || os.IsPathSeparator(rest[0]))
}
