package main

import (
	"context"
	"errors"
	"fmt"
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

// sumOfNew is the SHA-256 of "new".
const sumOfNew = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"

// TestSwapRestoresOld fails each rename of an update in turn: target must always be the old or the new version.
func TestSwapRestoresOld(t *testing.T) {
	disk := errors.New("the disk is tired")
	for failing, want := range map[int]struct {
		content string
		err     error
		left    bool // the old version is in the temporary directory
	}{
		1: {"old", disk, false},
		2: {"old", disk, false},
		3: {"new", nil, false}, // there is no third rename
	} {
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			dir := t.TempDir()
			target := tiny(t, filepath.Join(dir, "root", "x"), "old")
			source, err := survey(t.Context(), tiny(t, filepath.Join(dir, "source"), "new"))
			if err != nil {
				t.Fatal(err)
			}
			calls := 0
			p := placement{ignored: []string{"node_modules"}, rename: func(from, to string) error {
				if calls++; calls == failing {
					return disk
				}
				return os.Rename(from, to)
			}}
			if err := p.put(t.Context(), source, target, sumOfNew); !errors.Is(err, want.err) {
				t.Fatalf("error %v, want %v", err, want.err)
			}
			if err := p.discard(); err != nil {
				t.Fatal(err)
			}
			if got := content(t, target); got != want.content {
				t.Errorf("target is the %s version, want the %s version", got, want.content)
			}
			if got := names(t, filepath.Join(dir, "root")); got != "x" {
				t.Errorf("left over: %s", got)
			}
		})
	}
}

// TestSwapStranded: if the old version cannot be restored, it is kept and the error has its path.
func TestSwapStranded(t *testing.T) {
	dir := t.TempDir()
	target := tiny(t, filepath.Join(dir, "root", "x"), "old")
	source, err := survey(t.Context(), tiny(t, filepath.Join(dir, "source"), "new"))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	p := placement{rename: func(from, to string) error {
		if calls++; calls > 1 {
			return errors.New("the disk is tired")
		}
		return os.Rename(from, to)
	}}
	err = p.put(t.Context(), source, target, sumOfNew)
	stranded, ok := errors.AsType[*strandedError](err)
	if !ok {
		t.Fatalf("error %v, want one with the path of the old version", err)
	}
	if got := content(t, stranded.old); got != "old" {
		t.Errorf("%s is the %s version", stranded.old, got)
	}
}

// TestCopyChanged: install fails if the copied manifest is not the one that was checked.
func TestCopyChanged(t *testing.T) {
	dir := t.TempDir()
	source, err := survey(t.Context(), tiny(t, filepath.Join(dir, "source"), "newer"))
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "root", "x")
	p := placement{rename: os.Rename}
	if err := p.put(t.Context(), source, target, sumOfNew); err == nil || !strings.Contains(err.Error(), "changed during the copy") {
		t.Errorf("error %v", err)
	}
	if got := names(t, filepath.Join(dir, "root")); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// TestCopyFollowsNoNewLink replaces a file by a link out of the tree after the tree was listed, as an attacker could.
func TestCopyFollowsNoNewLink(t *testing.T) {
	dir := t.TempDir()
	secret := tiny(t, filepath.Join(dir, "elsewhere"), "secret")
	source := tiny(t, filepath.Join(dir, "source"), "new")
	tree, err := survey(t.Context(), source)
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
	source, err := survey(t.Context(), tiny(t, filepath.Join(dir, "source"), "new"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := placement{rename: os.Rename}
	if err := p.put(ctx, source, target, sumOfNew); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := names(t, filepath.Join(dir, "root")) + content(t, target); got != "xold" {
		t.Errorf("left: %s", got)
	}
	if _, err := survey(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestCopyModes: executable files remain executable, and the owner can remove every directory.
func TestCopyModes(t *testing.T) {
	dir := t.TempDir()
	source := tiny(t, filepath.Join(dir, "source"), "new")
	for path, mode := range map[string]fs.FileMode{"run": 0o755, "secret": 0o600, "read-only": 0o444} {
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
	tree, err := survey(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "copy")
	if err := tree.copy(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]fs.FileMode{"run": 0o755, "secret": 0o600, "read-only": 0o444, "locked": 0o755} {
		info, err := os.Stat(filepath.Join(copied, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v, want %v", path, info.Mode().Perm(), mode)
		}
	}
}
