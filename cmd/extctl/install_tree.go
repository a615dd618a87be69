package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxTreeEntries limits what install copies: 10,000 files in node_modules are usual, a home directory named by mistake
// must not be copied.
const maxTreeEntries = 200_000

// tree is the content of a directory to be copied.
type tree struct {
	root    string // canonical
	entries []treeEntry
	files   int
	bytes   int64
}

// treeEntry is a directory, a regular file or a symbolic link. A directory comes before its content.
type treeEntry struct {
	rel  string
	mode fs.FileMode
	link string // the target of a symbolic link in the copy
}

// unfitError lists the entries of a tree that cannot be copied.
type unfitError struct{ entries []string }

func (e *unfitError) Error() string {
	const shown = 5
	text := strings.Join(e.entries[:min(shown, len(e.entries))], "; ")
	if n := len(e.entries) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}

// survey lists the content of root without .git and without following links. The error lists everything that cannot be
// copied.
func survey(ctx context.Context, root string) (*tree, error) {
	t := &tree{root: root}
	unfit := &unfitError{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if rel == ".git" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil // in a submodule or a worktree .git is a file
		}
		if len(t.entries) == maxTreeEntries {
			return fmt.Errorf("%s has more than %d files and directories; check the path, or use --link, which copies nothing", root, maxTreeEntries)
		}
		why, err := t.add(rel, d)
		if why != "" {
			unfit.entries = append(unfit.entries, rel+" "+why)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(unfit.entries) > 0 {
		return nil, unfit
	}
	return t, nil
}

// add adds one entry; unfit is the reason why it cannot be copied.
func (t *tree) add(rel string, d fs.DirEntry) (unfit string, err error) {
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	e := treeEntry{rel: rel, mode: info.Mode()}
	switch {
	case info.IsDir():
	case info.Mode().IsRegular():
		t.files++
		t.bytes += info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		var ok bool
		if e.link, ok, err = t.link(rel); err != nil {
			return "", err
		} else if !ok {
			return "is a symbolic link that leads out of the extension", nil
		}
		t.files++
	default:
		return "is neither a file nor a directory", nil
	}
	t.entries = append(t.entries, e)
	return "", nil
}

// link is the text of the copy of the link rel: it leads to the same file in the copy. ok is false if that file is not in
// the tree.
func (t *tree) link(rel string) (text string, ok bool, err error) {
	path := filepath.Join(t.root, rel)
	if text, err = os.Readlink(path); err != nil {
		return "", false, err
	}
	local := !filepath.IsAbs(text) && filepath.IsLocal(filepath.Join(filepath.Dir(rel), text))
	real, err := filepath.EvalSymlinks(path)
	switch {
	case err != nil: // a dangling link is copied if its target would be in the tree
		return text, local, nil
	case !within(t.root, real):
		return "", false, nil
	case !local: // absolute, or through the name of the tree's root
		text, err = filepath.Rel(filepath.Dir(path), real)
	}
	return text, err == nil, err
}

// copy copies t to dst, which must not exist, and returns when the copy is on disk.
func (t *tree) copy(ctx context.Context, dst string) error {
	// os.Root: a file that is replaced by a link during the copy must not be followed either.
	src, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }() // read only
	for _, e := range t.entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := e.copy(src, filepath.Join(dst, e.rel)); err != nil {
			return err
		}
	}
	for i := len(t.entries) - 1; i >= 0; i-- { // from the inside out
		if e := t.entries[i]; e.mode.IsDir() {
			if err := syncDir(filepath.Join(dst, e.rel)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e treeEntry) copy(src *os.Root, path string) error {
	switch {
	case e.mode.IsDir():
		// Without the owner's permissions the directory could not be filled or removed.
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return os.Chmod(path, e.mode.Perm()|0o700)
	case e.mode.IsRegular():
		return copyFile(src, e.rel, path, e.mode.Perm())
	}
	return os.Symlink(e.link, path)
}

func copyFile(src *os.Root, rel, path string, perm fs.FileMode) error {
	in, err := src.Open(rel)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // read only
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(perm), out.Sync(), out.Close())
}
