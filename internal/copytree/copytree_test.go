package copytree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tiny is a directory with one file in it.
func tiny(t *testing.T, dir, text string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plugin.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// names lists the content of dir, "" if it is empty.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func content(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "plugin.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// place surveys a directory with the text in its manifest, and places it.
func place(t *testing.T, ctx context.Context, text, target string, replace bool) error {
	t.Helper()
	tree, err := Survey(t.Context(), tiny(t, filepath.Join(t.TempDir(), "source"), text))
	if err != nil {
		t.Fatal(err)
	}
	return tree.Place(ctx, target, replace)
}

func TestPlace(t *testing.T) {
	target := filepath.Join(t.TempDir(), "root", "x")
	for _, replace := range []bool{false, true} { // the second time the target exists
		if err := place(t, t.Context(), "new", target, replace); err != nil {
			t.Fatal(err)
		}
		if got := names(t, filepath.Dir(target)) + " " + content(t, target); got != "x new" {
			t.Errorf("got %s", got)
		}
		tiny(t, target, "old")
	}
	if err := place(t, t.Context(), "new", target, false); !errors.Is(err, ErrExists) {
		t.Errorf("over what has appeared during the copy: %v", err)
	}
	if got := names(t, filepath.Dir(target)) + " " + content(t, target); got != "x old" {
		t.Errorf("got %s", got)
	}
}

// TestRemove checks that the removal of a directory creates none.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	if err := Remove(tiny(t, filepath.Join(dir, "x"), "old")); err != nil || names(t, dir) != "" {
		t.Errorf("%q is left, %v", names(t, dir), err)
	}
	if err := Remove(filepath.Join(dir, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestSwapRestoresOld: if the new version cannot be renamed, the old one is in its place again.
func TestSwapRestoresOld(t *testing.T) {
	dir := t.TempDir()
	target := tiny(t, filepath.Join(dir, "x"), "old")
	if err := swap(filepath.Join(dir, "absent"), target, filepath.Join(dir, "moved")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if got := names(t, dir) + " " + content(t, target); got != "x old" {
		t.Errorf("got %s", got)
	}
}

// TestCopyFollowsNoNewLink replaces a file by a link out of the tree after the tree was listed, as an attacker could.
func TestCopyFollowsNoNewLink(t *testing.T) {
	dir := t.TempDir()
	secret := tiny(t, filepath.Join(dir, "elsewhere"), "secret")
	source := tiny(t, filepath.Join(dir, "source"), "new")
	tree, err := Survey(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(source, "plugin.toml")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(secret, "plugin.toml"), file); err != nil {
		t.Skip(err)
	}
	copied := filepath.Join(dir, "copy")
	if err := tree.copy(t.Context(), copied); err == nil {
		t.Errorf("copied: %s", content(t, copied))
	}
}

func TestInstallInterrupted(t *testing.T) {
	dir := t.TempDir()
	target := tiny(t, filepath.Join(dir, "root", "x"), "old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := place(t, ctx, "new", target, true); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := names(t, filepath.Join(dir, "root")) + content(t, target); got != "xold" {
		t.Errorf("left: %s", got)
	}
	if _, err := Survey(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestCopyModes: executable files remain executable, only the owner can change them, and the owner can remove every directory.
func TestCopyModes(t *testing.T) {
	dir := t.TempDir()
	source := tiny(t, filepath.Join(dir, "source"), "new")
	for path, mode := range map[string]fs.FileMode{"run": 0o755, "secret": 0o600, "read-only": 0o444, "anybody's": 0o777} {
		path = filepath.Join(source, path)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	locked := tiny(t, filepath.Join(source, "locked"), "in")
	if err := os.Chmod(locked, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(locked, 0o755) })
	if err := os.Chmod(tiny(t, filepath.Join(source, "private"), "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	tree, err := Survey(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "copy")
	if err := tree.copy(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{"run": 0o755, "secret": 0o600, "read-only": 0o444, "locked": 0o755, "private": 0o700, "anybody's": 0o755} {
		info, err := os.Stat(filepath.Join(copied, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v, want %v", path, info.Mode().Perm(), mode)
		}
	}
}
