// Package copytree puts copies of directories in place, and removes them, so that a reader finds all of a directory or none.
package copytree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/discovery"
)

// maxEntries limits what is copied: 10,000 files in node_modules are usual, a home directory named by mistake
// must not be copied.
const maxEntries = 200_000

// Tree is what Survey found in the directory of an extension.
type Tree struct {
	Files int
	Bytes int64

	root    string                 // canonical
	modes   map[string]fs.FileMode // permissions of the regular files, and at most those of the directories
	entries int
	unfit   []string // entries that cannot be copied, with the reason
}

// UnfitError lists the entries of a tree that cannot be copied.
type UnfitError struct{ Entries []string }

func (e *UnfitError) Error() string {
	const shown = 5
	text := strings.Join(e.Entries[:min(shown, len(e.Entries))], "; ")
	if n := len(e.Entries) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}

// Survey counts what is in root without .git, and without following links. The error lists everything that cannot be
// copied, as an *UnfitError.
func Survey(ctx context.Context, root string) (*Tree, error) {
	t := &Tree{root: root, modes: map[string]fs.FileMode{}}
	err := fs.WalkDir(source{ctx, os.DirFS(root)}, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if t.entries++; t.entries > maxEntries {
			return fmt.Errorf("%s has more than %d files and directories; check the path, or use --link, which copies nothing", root, maxEntries)
		}
		return t.add(path, d)
	})
	if err == nil && len(t.unfit) > 0 {
		err = &UnfitError{t.unfit}
	}
	return t, err
}

func (t *Tree) add(path string, d fs.DirEntry) error {
	info, err := d.Info()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		if path != "." { // a bridge with another user must read it
			t.modes[path] = fs.ModeDir | info.Mode().Perm() | 0o700
		}
		return nil
	case info.Mode().IsRegular():
		t.modes[path] = info.Mode().Perm() &^ 0o022 // only the owner may change what a bridge runs
		t.Bytes += info.Size()
	case info.Mode()&fs.ModeSymlink == 0:
		t.unfit = append(t.unfit, path+" is neither a file nor a directory")
	case t.leadsOut(path):
		t.unfit = append(t.unfit, path+" is a symbolic link that is absolute or leads out of the extension")
	}
	t.Files++
	return nil
}

// leadsOut reports whether the symbolic link at path would lead out of a copy of the tree.
func (t *Tree) leadsOut(path string) bool {
	file := filepath.Join(t.root, path)
	text, err := os.Readlink(file)
	if err != nil || filepath.IsAbs(text) || !filepath.IsLocal(filepath.Join(filepath.Dir(path), text)) {
		return true
	}
	real, err := filepath.EvalSymlinks(file) // through other links; one that leads to nothing is copied
	return err == nil && !discovery.Within(t.root, real)
}

// source is a directory without .git, whose reading ends with a context.
type source struct {
	ctx context.Context
	fs.FS
}

func (s source) Open(name string) (fs.File, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	return s.FS.Open(name)
}

func (s source) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(s.FS, name)
	if name == "." {
		// In a submodule or a worktree .git is a file.
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ".git" })
	}
	return entries, err
}

func (s source) ReadLink(name string) (string, error)   { return fs.ReadLink(s.FS, name) }
func (s source) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(s.FS, name) }

// ErrExists is returned by Place for a target that is not to be replaced.
var ErrExists = errors.New("the target exists")

// Place makes target a copy of t, by renaming: a reader finds the old directory, the new one or none, never half
// of one. If there is an old one, it is replaced with replace, otherwise the error is ErrExists. After an error target is unchanged,
// or the error names the directory that the old version is in.
func (t *Tree) Place(ctx context.Context, target string, replace bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(target), discovery.TempPrefix+"*")
	if err != nil {
		return err
	}
	staged, old := filepath.Join(work, "new"), filepath.Join(work, "old")
	switch err = t.copy(ctx, staged); {
	case err != nil:
	case replace:
		err = swap(staged, target, old)
	default:
		if err = os.Rename(staged, target); errors.Is(err, fs.ErrExist) {
			err = ErrExists
		}
	}
	if _, missing := os.Lstat(old); err != nil && !errors.Is(missing, fs.ErrNotExist) {
		return err // keep the temporary directory: it contains the old version
	}
	_ = os.RemoveAll(work) // no bridge reads what is left: discovery ignores its name
	return err
}

// copy copies the tree to dst.
func (t *Tree) copy(ctx context.Context, dst string) error {
	// os.Root: a file that is replaced by a link during the copy must not be followed out of the tree.
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // read only
	if err := os.CopyFS(dst, source{ctx, root.FS()}); err != nil {
		return err
	}
	// A file may have become a link since the survey.
	if dst, err = filepath.EvalSymlinks(dst); err != nil {
		return err
	}
	if _, err := Survey(ctx, dst); err != nil {
		return err
	}
	for path, mode := range t.modes { // CopyFS makes every file readable and writable
		path = filepath.Join(dst, path)
		if mode.IsDir() { // what is private stays so
			info, err := os.Lstat(path)
			if err != nil {
				return err
			}
			if mode &= info.Mode().Perm(); mode == info.Mode().Perm() {
				continue
			}
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// swap renames staged to target, and what was there before to old. If it fails, old exists only if it could not be restored.
func swap(staged, target, old string) error {
	err := os.Rename(target, old)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Rename(staged, target)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(staged, target); err != nil {
		if back := os.Rename(old, target); back != nil {
			return fmt.Errorf("%w; the old version could not be restored either (%w); it is in %s", err, back, old)
		}
		return err
	}
	return nil
}

// Remove removes a directory with everything in it.
func Remove(dir string) error {
	work := filepath.Join(filepath.Dir(dir), discovery.TempPrefix+rand.Text())
	if err := os.Rename(dir, work); err != nil { // on a full disk, too
		return fmt.Errorf("%s was not removed: %w", dir, err)
	}
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("uninstalled, but files in %s could not be removed: %w", work, err)
	}
	return nil
}
