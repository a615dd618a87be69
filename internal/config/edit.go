package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// lists are the lists of extensions.yaml that an edit may change, by key, as they are written in the file.
type lists map[string][]string

var listKeys = []string{"disabled", "allowlist", "links"}

// add adds an item unless the list has it.
func (l lists) add(key, item string, same func(a, b string) bool) {
	if !slices.ContainsFunc(l[key], func(s string) bool { return same(s, item) }) {
		l[key] = append(slices.Clone(l[key]), item)
	}
}

// drop removes an item.
func (l lists) drop(key, item string, same func(a, b string) bool) {
	l[key] = slices.DeleteFunc(slices.Clone(l[key]), func(s string) bool { return same(s, item) })
}

func sameText(a, b string) bool { return a == b }

// sameDir compares the paths only as text, because their directories may no longer exist.
func sameDir(a, b string) bool {
	x, errX := filepath.Abs(home(a))
	y, errY := filepath.Abs(home(b))
	return errX == nil && errY == nil && x == y
}

// disable and enable change the lists for an extension. If there is an allowlist, an id is added to it, because otherwise
// enabling would have no effect.
func (l lists) disable(id string) { l.add("disabled", id, sameText) }

func (l lists) enable(id string) {
	l.drop("disabled", id, sameText)
	if len(l["allowlist"]) > 0 {
		l.add("allowlist", id, sameText)
	}
}

// SetDisabled adds the extension id to extensions.disabled or removes it; see edit for how, and for the errors.
// Removing also adds it to extensions.allowlist if there is one without it. An invalid id is an error.
func SetDisabled(ctx context.Context, path, id string, disabled bool) (changed bool, err error) {
	if wrong := wrongID(id); wrong != "" {
		return false, errors.New(wrong)
	}
	return edit(ctx, path, func(l lists) {
		if disabled {
			l.disable(id)
		} else {
			l.enable(id)
		}
	})
}

// AddLink records target in extensions.links as an absolute path; see edit for how, and for the errors. A target that
// is recorded with a different spelling of its path is not added again.
func AddLink(ctx context.Context, path, target string) (changed bool, err error) {
	target, err = filepath.Abs(target)
	if err != nil {
		return false, err
	}
	return edit(ctx, path, func(l lists) { l.add("links", target, sameDir) })
}

// RemoveLink removes target from extensions.links, regardless of the spelling of its path there; see edit for how,
// and for the errors. target need not exist.
func RemoveLink(ctx context.Context, path, target string) (changed bool, err error) {
	return edit(ctx, path, func(l lists) { l.drop("links", target, sameDir) })
}

// starter is what a new file begins with. Without a file, and in one without the key, inherit_env is all.
const starter = `extensions:
  # Extensions get PATH, HOME and a few other variables, and those that their manifests declare; "all" adds the others.
  inherit_env: minimal
`

// lockWait is how long an edit waits for another one.
const lockWait = 10 * time.Second

// edit changes the lists of the extensions.yaml at path. It reads the file, calls change with its lists as they are written, and
// writes the changed lists into the text: comments, order, quoting and line ends of everything else stay. A file that does not
// exist is created with inherit_env: minimal, and a symbolic link is followed. changed is false, and nothing is written, if
// change has no effect. change may be called twice.
//
// Concurrent edits are serialized by a lock file, .<name>.lock, next to the file, which is not removed. The file is
// replaced atomically.
//
// A file with errors is not edited; the error is then an *InvalidError. A list over several lines in brackets, "extensions: {…}" without
// the list, and other forms that setList does not support, are not edited either; the error then contains what to write by hand.
func edit(ctx context.Context, path string, change func(lists)) (changed bool, err error) {
	if path, err = document.Target(path); err != nil {
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
	old, err := document.ReadFile(path)
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
	if err := document.Replace(path, []byte(text), 0o644, nil); err != nil {
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
	n := slices.IndexFunc(e.Diagnostics, func(d manifest.Diagnostic) bool { return d.Level == manifest.Error })
	return fmt.Sprintf("%s has errors and was not changed; fix it first: %v", e.Path, e.Diagnostics[n])
}

// lock acquires the lock. It is a separate file because the configuration is replaced: a lock on the old file would
// not lock the new one.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock")
	l := flock.New(name, flock.SetPermissions(0o644))
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("another process has held the lock %s for %s", name, lockWait))
	defer cancel()
	switch ok, err := l.TryLockContext(ctx, 20*time.Millisecond); {
	case ok: // even if ctx has ended since
		return func() {
			_ = l.Unlock() // also closes the file, which unlocks it in any case
		}, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("locking the configuration: %w", context.Cause(ctx))
	default:
		return nil, fmt.Errorf("locking the configuration: %w", err)
	}
}

// edited returns text with changed lists.
func edited(path, text string, change func(lists)) (string, error) {
	before, diags := Parse(path, []byte(text))
	if manifest.HasErrors(diags) {
		return "", &InvalidError{path, diags}
	}
	old := written(path, text)
	want := maps.Clone(old)
	change(want)
	out, byHand := text, ""
	for _, key := range listKeys {
		if !slices.Equal(old[key], want[key]) {
			out = setList(path, out, key, want[key])
			byHand += "  " + key + ": " + flow(want[key])
		}
	}
	// Whatever was changed in the text, the result must parse to the wanted lists, and the rest must be unchanged.
	after, diags := Parse(path, []byte(out))
	got := written(path, out)
	before.Disabled, before.Allowlist, before.Links = after.Disabled, after.Allowlist, after.Links
	if manifest.HasErrors(diags) || !maps.EqualFunc(got, want, slices.Equal) || !reflect.DeepEqual(before, after) {
		return "", fmt.Errorf("%s was not changed because of how it is written; write this by hand below extensions:%s", path, byHand)
	}
	return out, nil
}

// written returns the lists as they are in the text; Parse expands home directories.
func written(path, text string) lists {
	l := lists{}
	if _, top, ok := open(path, []byte(text)); ok {
		m := top.sub("extensions")
		for _, key := range listKeys {
			var list []string
			m.list(key, &list, func(string) string { return "" })
			l[key] = list
		}
	}
	return l
}
