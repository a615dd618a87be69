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

// placement puts directories in place and takes them away, so that whoever looks finds the old one, the new
// one or none, and never half of one.
//
// What is not in place yet, or no more, lies in a directory beside it, on the same file system. There a bridge
// could find it, and after a crash for good; so it lies in one of a name that discovery does not enter.
type placement struct {
	rename  func(from, to string) error
	ignored []string // extensions.ignore_dirs

	work  string // to be removed in the end
	inner string
}

// open makes the working directory beside target.
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

// discard removes the working directory and what is in it.
func (p *placement) discard() error {
	if p.work == "" {
		return nil
	}
	return os.RemoveAll(p.work)
}

// put copies t and puts the copy in target's place. After an error target is what it was. hash is that of the
// manifest that was checked.
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
			return lost // the old one is in there
		}
		return errors.Join(err, p.discard())
	}
	return nil
}

// unchanged refuses a copy whose manifest is not the one that was checked.
func unchanged(dir, hash string) error {
	data, err := os.ReadFile(filepath.Join(dir, manifest.FileName))
	if err != nil {
		return err
	}
	sidecar, err := os.ReadFile(filepath.Join(dir, manifest.SidecarName))
	sum := sha256.Sum256(data)
	both := sha256.Sum256(append(append(data, 0), sidecar...))
	if got := hex.EncodeToString(sum[:]); got != hash && (err != nil || hex.EncodeToString(both[:]) != hash) {
		return errors.New("the manifest changed while it was copied; try again")
	}
	return nil
}

// strandedError is an old directory that could not be put back.
type strandedError struct {
	old string
	err error
}

func (e *strandedError) Error() string {
	return fmt.Sprintf("%v; the old one could not be put back either and lies in %s", e.err, e.old)
}

func (e *strandedError) Unwrap() error { return e.err }

// swap puts staged in target's place; what is there goes into the working directory.
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
	// It is done. A disk that cannot even say so does not undo it.
	_ = syncDir(filepath.Dir(target))
	return nil
}

// remove takes the directory target away.
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
