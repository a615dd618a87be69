package discovery

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// root is a directory to walk.
type root struct {
	dir   string // canonical
	index int
	link  bool // one of Options.Links
}

// canonical makes the roots absolute and free of symbolic links. Unusable and duplicate roots are warnings. The
// indexes include unusable roots, so that they match the configuration.
func canonical(roots, links []string, f *findings) []root {
	var out []root
	first := map[string]string{}
	for i, path := range append(append([]string(nil), roots...), links...) {
		key, remedy := "extensions.search_paths", "create it, or remove it from search_paths"
		if i >= len(roots) {
			key, remedy = "extensions.links", "restore it, or remove it from links"
		}
		if path == "" {
			f.add(manifest.Warn, path, key, "the root is an empty string and is skipped; want the path of a directory")
			continue
		}
		dir, err := canonicalDir(path)
		switch was, twice := first[dir]; {
		case err != nil:
			f.incomplete = f.incomplete || !lasting(err)
			f.add(manifest.Warn, path, key, "the root cannot be read and is skipped: %v; %s", document.Reason(err), remedy)
		case twice:
			f.add(manifest.Warn, path, key, "the root is the same directory as %s and is skipped", was)
		default:
			first[dir] = path
			out = append(out, root{dir, i, i >= len(roots)})
		}
	}
	return out
}

var errNotDir = errors.New("not a directory")

func canonicalDir(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errNotDir
	}
	return dir, err
}

// lasting reports whether err describes a permanent condition rather than a temporary failure.
func lasting(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, errNotDir)
}
