package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// Lists are the keys of extensions.yaml that Edit may change.
type Lists struct {
	Disabled  []string
	Allowlist []string
	Links     []string
}

// Disable disables the extension id.
func (l *Lists) Disable(id string) { l.Disabled = with(l.Disabled, id) }

// Enable enables the extension id. If there is an allowlist, the id is added to it, because otherwise enabling would
// have no effect.
func (l *Lists) Enable(id string) {
	l.Disabled = without(l.Disabled, func(s string) bool { return s == id })
	if len(l.Allowlist) > 0 {
		l.Allowlist = with(l.Allowlist, id)
	}
}

// Link records dir, which should be absolute, as a further root.
func (l *Lists) Link(dir string) {
	if !slices.ContainsFunc(l.Links, func(s string) bool { return sameDir(s, dir) }) {
		l.Links = append(l.Links, dir)
	}
}

// Unlink removes a recorded dir.
func (l *Lists) Unlink(dir string) {
	l.Links = without(l.Links, func(s string) bool { return sameDir(s, dir) })
}

func with(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(slices.Clone(list), s)
}

func without(list []string, drop func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(list), drop)
}

// sameDir compares the paths only as text, because their directories may no longer exist.
func sameDir(a, b string) bool {
	x, errX := filepath.Abs(home(a))
	y, errY := filepath.Abs(home(b))
	return errX == nil && errY == nil && x == y
}

// SetDisabled adds the extension id to extensions.disabled or removes it; see Edit for how, and for the errors.
// Removing also adds it to extensions.allowlist if there is one without it. An invalid id is an error.
func SetDisabled(ctx context.Context, path, id string, disabled bool) (changed bool, err error) {
	if wrong := wrongID(id); wrong != "" {
		return false, errors.New(wrong)
	}
	return Edit(ctx, path, func(l *Lists) {
		if disabled {
			l.Disable(id)
		} else {
			l.Enable(id)
		}
	})
}

// AddLink records target in extensions.links as an absolute path; see Edit for how, and for the errors. A target that
// is recorded with a different spelling of its path is not added again.
func AddLink(ctx context.Context, path, target string) (changed bool, err error) {
	target, err = filepath.Abs(target)
	if err != nil {
		return false, err
	}
	return Edit(ctx, path, func(l *Lists) { l.Link(target) })
}

// RemoveLink removes target from extensions.links, regardless of the spelling of its path there; see Edit for how,
// and for the errors. target need not exist.
func RemoveLink(ctx context.Context, path, target string) (changed bool, err error) {
	return Edit(ctx, path, func(l *Lists) { l.Unlink(target) })
}

// starter is what a new file begins with. Without a file, and in one without the key, inherit_env is all.
const starter = `extensions:
  # Extensions get PATH, HOME and a few other variables, and those that their manifests declare; "all" adds the others.
  inherit_env: minimal
`

// lockWait is how long Edit waits for another Edit.
const lockWait = 10 * time.Second

// Edit changes the lists of the extensions.yaml at path; an empty path is DefaultPath. It reads the file, calls
// change with its lists as they are written, and writes the changed lists into the text: comments, order, quoting and
// line ends of everything else stay. A file that does not exist is created with inherit_env: minimal, and a symbolic
// link is followed. changed is false, and nothing is written, if change has no effect. change may be called twice.
//
// Concurrent Edits are serialized by a lock file, .<name>.lock, next to the file, which is not removed. The file is
// replaced atomically.
//
// A file with errors is not edited; the error is then an *InvalidError. A list over several lines in brackets, and other
// forms that setList does not know, are not edited either; the error then contains what to write by hand.
func Edit(ctx context.Context, path string, change func(*Lists)) (changed bool, err error) {
	if path == "" {
		path = DefaultPath
	}
	if path, err = target(path); err != nil {
		return false, fmt.Errorf("editing the configuration: %w", err)
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if text, err := edited(path, starter, change); err != nil || text == starter {
			return false, err // nothing to write, so no directory either
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("editing the configuration: %w", err)
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return false, err
	}
	defer unlock()
	old, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(starter), nil
	}
	if err != nil {
		return false, fmt.Errorf("editing the configuration: %w", err)
	}
	text, err := edited(path, string(old), change)
	if err != nil || text == string(old) {
		return false, err
	}
	if err := replace(path, []byte(text)); err != nil {
		return false, fmt.Errorf("writing the configuration: %w", err)
	}
	return true, nil
}

// InvalidError is returned for a file that was not edited because it has errors.
type InvalidError struct {
	Path        string
	Diagnostics []manifest.Diagnostic
}

func (e *InvalidError) Error() string {
	n := 0
	for i := len(e.Diagnostics) - 1; i >= 0; i-- {
		if e.Diagnostics[i].Level == manifest.Error {
			n = i
		}
	}
	return fmt.Sprintf("%s has errors and was not changed; fix it first: %v", e.Path, e.Diagnostics[n])
}

// target follows symbolic links, so that the file is replaced and not the link. The file itself need not exist.
func target(path string) (string, error) {
	for range 40 {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}

// lock acquires the lock. It is a separate file because the configuration is replaced: a lock on the old file would
// not lock the new one.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock")
	l := flock.New(name, flock.SetPermissions(0o644))
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("another process has held the lock %s for %s", name, lockWait))
	defer cancel()
	if ok, err := l.TryLockContext(ctx, 20*time.Millisecond); ctx.Err() != nil {
		return nil, fmt.Errorf("locking the configuration: %w", context.Cause(ctx))
	} else if err != nil || !ok {
		return nil, fmt.Errorf("locking the configuration: %w", err)
	}
	return func() {
		_ = l.Unlock() // also closes the file, which unlocks it in any case
	}, nil
}

// edited returns text with changed lists.
func edited(path, text string, change func(*Lists)) (string, error) {
	before, diags := Parse(path, []byte(text))
	if manifest.HasErrors(diags) {
		return "", &InvalidError{path, diags}
	}
	old := written(path, text)
	want := Lists{slices.Clone(old.Disabled), slices.Clone(old.Allowlist), slices.Clone(old.Links)}
	change(&want)
	out := text
	for _, l := range []struct {
		key       string
		old, want []string
	}{
		{"disabled", old.Disabled, want.Disabled}, {"allowlist", old.Allowlist, want.Allowlist}, {"links", old.Links, want.Links},
	} {
		if !slices.Equal(l.old, l.want) {
			out = setList(path, out, l.key, l.want)
		}
	}
	// Whatever was changed in the text, the result must parse to the wanted lists, and the rest must be unchanged.
	after, diags := Parse(path, []byte(out))
	got := written(path, out)
	before.Disabled, before.Allowlist, before.Links = after.Disabled, after.Allowlist, after.Links
	if manifest.HasErrors(diags) || !got.equal(want) || !reflect.DeepEqual(before, after) {
		return "", fmt.Errorf("%s was not changed because of how its lists are written; write this by hand below extensions:%s", path, want.changes(old))
	}
	return out, nil
}

// changes are the lines to write by hand.
func (l Lists) changes(old Lists) string {
	text := ""
	if !slices.Equal(l.Disabled, old.Disabled) {
		text += "  disabled: " + flow(l.Disabled, scalar)
	}
	if !slices.Equal(l.Allowlist, old.Allowlist) {
		text += "  allowlist: " + flow(l.Allowlist, scalar)
	}
	if !slices.Equal(l.Links, old.Links) {
		text += "  links: " + flow(l.Links, scalar)
	}
	return text
}

// written returns the lists as they are in the text; Parse expands home directories.
func written(path, text string) (l Lists) {
	if _, top, ok := open(path, []byte(text)); ok {
		any := func(string) string { return "" }
		m := top.sub("extensions")
		m.list("disabled", &l.Disabled, any)
		m.list("allowlist", &l.Allowlist, any)
		m.list("links", &l.Links, any)
	}
	return l
}

func (l Lists) equal(m Lists) bool {
	return slices.Equal(l.Disabled, m.Disabled) && slices.Equal(l.Allowlist, m.Allowlist) && slices.Equal(l.Links, m.Links)
}
