package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// placement replaces and removes directories by renaming, so that a reader finds the old directory, the new one or none,
// never half of one.
//
// New and old directories are stored next to the target, on the same file system, until they are renamed or removed.
// Discovery ignores the name of their parent directory, because a bridge must not find them, also after a crash.
type placement struct {
	rename  func(from, to string) error
	ignored []string // extensions.ignore_dirs

	work  string // the temporary directory
	inner string // in it, with an ignored name
}

// open makes the temporary directory next to target.
func (p *placement) open(target string) error {
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var err error
	if p.work, err = os.MkdirTemp(dir, ".extmesh-*"); err != nil {
		return err
	}
	p.inner = p.work
	if len(p.ignored) > 0 {
		p.inner = filepath.Join(p.work, p.ignored[0])
	}
	if p.inner == p.work {
		return nil
	}
	return os.Mkdir(p.inner, 0o700)
}

// discard removes the temporary directory and its content.
func (p *placement) discard() error {
	if p.work == "" {
		return nil
	}
	return os.RemoveAll(p.work)
}

// put replaces target by a copy of t. After an error target is unchanged. hash is the hash of the manifest that was
// checked.
func (p *placement) put(ctx context.Context, t *tree, target, hash string) error {
	if err := p.open(target); err != nil {
		return errors.Join(err, p.discard())
	}
	staged := filepath.Join(p.inner, "new")
	err := t.copy(ctx, staged)
	if err == nil {
		err = unchanged(staged, hash)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = p.swap(staged, target)
	}
	if err != nil {
		if lost, ok := errors.AsType[*strandedError](err); ok {
			return lost // keep the temporary directory: it contains the old version
		}
		return errors.Join(err, p.discard())
	}
	return nil
}

// unchanged fails if the copy's manifest is not the one that was checked.
func unchanged(dir, hash string) error {
	data, err := os.ReadFile(filepath.Join(dir, manifest.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join(dir, manifest.SidecarName))
	}
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != hash {
		return errors.New("the manifest changed during the copy; try again")
	}
	return nil
}

// strandedError is an old directory that could not be restored.
type strandedError struct {
	old string
	err error
}

func (e *strandedError) Error() string {
	return fmt.Sprintf("%v; the old version could not be restored either; it is in %s", e.err, e.old)
}

func (e *strandedError) Unwrap() error { return e.err }

// swap replaces target by staged, and moves the old content to the temporary directory.
func (p *placement) swap(staged, target string) error {
	old := filepath.Join(p.inner, "old")
	err := p.rename(target, old)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = ""
	case err != nil:
		return err
	}
	if err := p.rename(staged, target); err != nil {
		if old == "" {
			return err
		}
		if back := p.rename(old, target); back != nil {
			return &strandedError{old, errors.Join(err, back)}
		}
		return err
	}
	// The rename has happened; a failed sync does not undo it.
	_ = syncDir(filepath.Dir(target))
	return nil
}

// remove moves target to the temporary directory.
func (p *placement) remove(target string) error {
	if err := p.open(target); err != nil {
		return errors.Join(err, p.discard())
	}
	if err := p.rename(target, filepath.Join(p.inner, "old")); err != nil {
		return errors.Join(err, p.discard())
	}
	_ = syncDir(filepath.Dir(target)) // as in swap
	return nil
}
