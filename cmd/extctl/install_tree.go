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

// maxTreeEntries bounds what install copies. A node_modules of ten thousand files is usual, a home directory that was named
// by mistake is not to be copied.
const maxTreeEntries = 200_000

// tree is a directory that is to be copied.
type tree struct {
	root    string // canonical
	entries []treeEntry
	files   int
	bytes   int64
}

// treeEntry is a directory, a regular file or a symbolic link, a directory before what is in it.
type treeEntry struct {
	rel  string
	mode fs.FileMode
	link string // of a symbolic link: what the copy points to
}

// unfitError lists what is in a tree and cannot be copied.
type unfitError struct{ entries []string }

func (e *unfitError) Error() string {
	const shown = 5
	text := strings.Join(e.entries[:min(shown, len(e.entries))], "; ")
	if n := len(e.entries) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}

// survey lists what is in root, except .git: the copy is no checkout. It follows no link. Everything that cannot be
// copied is in the error.
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
			return nil // of a submodule or a worktree: a file
		}
		if len(t.entries) == maxTreeEntries {
			return fmt.Errorf("%s holds over %d files and directories; is it the right one? --link copies nothing", root, maxTreeEntries)
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

// add notes one entry; unfit says why it cannot be copied.
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

// link is what a copy of the link rel has to point to, so that it leads to the same place in the copy; ok is false
// when that is not in the tree.
func (t *tree) link(rel string) (text string, ok bool, err error) {
	path := filepath.Join(t.root, rel)
	if text, err = os.Readlink(path); err != nil {
		return "", false, err
	}
	local := !filepath.IsAbs(text) && filepath.IsLocal(filepath.Join(filepath.Dir(rel), text))
	real, err := filepath.EvalSymlinks(path)
	switch {
	case err != nil: // it leads nowhere, and may do so in the copy as long as it stays there
		return text, local, nil
	case !within(t.root, real):
		return "", false, nil
	case !local: // absolute, or by way of the name of the tree
		text, err = filepath.Rel(filepath.Dir(path), real)
	}
	return text, err == nil, err
}

// copy makes dst, which must not exist, a copy of t, and returns when it is on disk.
func (t *tree) copy(ctx context.Context, dst string) error {
	// Through an os.Root, so that a file which becomes a link while we copy is not followed either.
	src, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }() // only read
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
		// Without the owner's own permissions it could not be filled, nor removed again.
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
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(perm), out.Sync(), out.Close())
}
