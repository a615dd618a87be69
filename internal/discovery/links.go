package discovery

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// maxSkippedLinks limits the diagnostics about links that are not followed; some package managers create thousands.
const maxSkippedLinks = 100

// linkedFile returns the path to read for a manifest or sidecar, which may be a link, or "" if it must not be read. A
// broken link is reported at level broken.
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
	if err == nil && Within(r.dir, target) {
		return target
	}
	if broken == manifest.Error {
		w.refused++
	}
	if err != nil {
		w.add(broken, path, "", "the symbolic link is broken: %v", document.Reason(err))
	} else {
		w.escape(r, path, target)
	}
	return ""
}

// linkedDir returns the directory that the link dir/name points to, or "" if it is not a directory or must not be entered.
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
		// the walk of that root scans it
	case !w.follow:
		w.skipLink(path)
	case err != nil:
		w.add(manifest.Warn, path, "", "the symbolic link is broken: %v", document.Reason(err))
	case !Within(r.dir, target):
		w.escape(r, path, target)
	case Within(target, dir):
		w.add(manifest.Info, path, "", "the symbolic link leads to %s, a parent directory, and is skipped", target)
	case w.ignore[filepath.Base(target)]:
		// not entered
	default:
		return target
	}
	return ""
}

// elsewhere reports whether a link out of r leads into one of Options.Links. This is not an escape: the operator has
// listed the extension, and it is found there (docs/decisions/0007). Another one of Options.Roots does not count: it
// is a place to search, and does not show that the operator wants this link.
func (w *walker) elsewhere(r root, path, target string) bool {
	if Within(r.dir, target) {
		return false
	}
	for _, other := range w.roots {
		if other.link && Within(other.dir, target) {
			w.add(manifest.Info, path, "", "the symbolic link leads to %s, which is scanned as one of links", target)
			return true
		}
	}
	return false
}

func (w *walker) skipLink(path string) {
	if w.skipped++; w.skipped <= maxSkippedLinks {
		w.add(manifest.Info, path, "", "the symbolic link is skipped; set follow_links to follow links that stay within their root, or list its target in links")
	}
}

func (w *walker) escape(r root, path, target string) {
	w.add(manifest.Error, path, "", "the symbolic link leads out of the root %s to %s and is not followed; move the target into the root, or list it in links", r.dir, target)
}

// Within reports whether path is dir or below it; both are canonical.
func Within(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator)))
	return ok && (rest == "" || os.IsPathSeparator(rest[0]))
}
