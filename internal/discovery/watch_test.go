package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/manifest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// watching is a Watch that runs until the test ends.
type watching struct {
	*watcher
	t       *testing.T
	dir     string // the changes' paths are relative to it
	changes chan []Change
}

func watch(t *testing.T, dir string, opt WatchOptions, adjust func(*watcher)) *watching {
	t.Helper()
	opt.Debounce = max(opt.Debounce, 20*time.Millisecond)
	ready := make(chan struct{})
	opt.Ready = func() { close(ready) }
	w := &watching{t: t, dir: dir, changes: make(chan []Change, 100)}
	w.watcher = newWatcher(opt, func(c []Change) { w.changes <- c })
	if adjust != nil {
		adjust(w.watcher)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	// Owned by the test; its cleanup ends it and waits for it.
	go func() { w.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the watch did not become ready")
	}
	return w
}

// want waits for changes, "kind path" each, in any number of reports.
func (w *watching) want(want ...string) {
	w.t.Helper()
	var got []string
	for len(got) < len(want) {
		select {
		case changes := <-w.changes:
			for _, c := range changes {
				rel, _ := filepath.Rel(w.dir, c.Path)
				got = append(got, fmt.Sprintf("%s %s", c.Kind, filepath.ToSlash(rel)))
			}
		case <-time.After(time.Minute):
			w.t.Fatalf("timed out; got %q, want %q", got, want)
		}
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		w.t.Fatalf("got %q, want %q", got, want)
	}
}

// put replaces a file atomically, as editors do, so that no partial content is read.
func (w *watching) put(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	write(w.t, path+".tmp", text)
	if err := os.Rename(path+".tmp", path); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) path(name string) string { return filepath.Join(w.dir, name) }

func TestWatch(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "old", "plugin.toml"), "old")
	write(t, filepath.Join(dir, "keep", "a", "plugin.toml"), "keep")
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{"node_modules"}}, nil)

	w.put("new/deep/er/plugin.toml", "1")
	w.want("added new/deep/er/plugin.toml")
	w.put("new/deep/er/plugin.toml", "2")
	w.want("changed new/deep/er/plugin.toml")
	w.put("old/.mcp.json", "{}")
	w.want("added old/.mcp.json")
	w.put("old/.mcp.json", "{ }")
	w.want("changed old/.mcp.json")

	// None of these is a change; the last line shows when they were processed.
	w.put("old/plugin.toml", "old")
	w.do(os.Chtimes(w.path("old/plugin.toml"), time.Now(), time.Now()))
	w.put("old/main.py", "")
	w.put("node_modules/x/plugin.toml", "ignored")
	w.put("1/2/3/4/plugin.toml", "too deep")
	w.put("last/plugin.toml", "1")
	w.want("added last/plugin.toml")

	w.do(os.Remove(w.path("old/plugin.toml")))
	w.want("removed old/plugin.toml")
	w.do(os.Remove(w.path("old/.mcp.json")))
	w.want("removed old/.mcp.json")
	w.put("alone/.mcp.json", "{}")
	w.want("added alone/.mcp.json")
	w.do(os.RemoveAll(w.path("new")))
	w.want("removed new/deep/er/plugin.toml")
	w.put("new/deep/er/plugin.toml", "3")
	w.want("added new/deep/er/plugin.toml")
}

// TestWatchRename moves directories; their watches move with them and continue under their old names.
func TestWatchRename(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "root", "a", "sub", "plugin.toml"), "1")
	w := watch(t, dir, WatchOptions{Roots: []string{filepath.Join(dir, "root")}}, nil)

	w.do(os.Rename(w.path("root/a"), w.path("root/b")))
	w.want("removed root/a/sub/plugin.toml", "added root/b/sub/plugin.toml")
	w.put("root/b/sub/plugin.toml", "2")
	w.want("changed root/b/sub/plugin.toml")
	w.put("root/a/sub/plugin.toml", "3")
	w.want("added root/a/sub/plugin.toml")

	w.do(os.Rename(w.path("root/b"), w.path("outside")))
	w.want("removed root/b/sub/plugin.toml")
	w.put("outside/sub/plugin.toml", "not watched")
	w.put("root/a/sub/plugin.toml", "4")
	w.want("changed root/a/sub/plugin.toml")
	w.do(os.Rename(w.path("outside"), w.path("root/c")))
	w.want("added root/c/sub/plugin.toml")
}

// TestWatchSquash: a report has what differs after all changes.
func TestWatchSquash(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "a", "plugin.toml"), "1")
	w := &watching{t: t, dir: dir, changes: make(chan []Change, 1), watcher: newWatcher(WatchOptions{Roots: []string{dir}}, nil)}
	w.rescan(t.Context())
	defer w.close()
	w.put("a/plugin.toml", "2")
	w.do(os.RemoveAll(w.path("a")))
	w.put("a/plugin.toml", "1")
	w.put("b/plugin.toml", "1")
	w.put("b/plugin.toml", "2")
	w.put("c/plugin.toml", "1")
	w.do(os.Remove(w.path("c/plugin.toml")))
	w.put("d/plugin.toml", "1")
	w.changes <- w.rescan(t.Context())
	w.want("added b/plugin.toml", "added d/plugin.toml")
}

// TestWatchRoots: roots are created, removed and created again, and one is a link with a changing target.
func TestWatchRoots(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "v1", "plugin.toml"), "1")
	write(t, filepath.Join(dir, "v2", "plugin.toml"), "2")
	symlink(t, "v1", filepath.Join(dir, "current"))
	w := watch(t, dir, WatchOptions{Roots: []string{filepath.Join(dir, "later", "root"), filepath.Join(dir, "current")}},
		func(w *watcher) { w.poll = 10 * time.Millisecond })

	w.put("later/root/a/plugin.toml", "1")
	w.want("added later/root/a/plugin.toml")
	w.do(os.Rename(w.path("later"), w.path("gone")))
	w.want("removed later/root/a/plugin.toml")
	w.put("staged/root/a/plugin.toml", "2")
	w.do(os.Rename(w.path("staged"), w.path("later")))
	w.want("added later/root/a/plugin.toml")
	w.put("later/root/a/plugin.toml", "3")
	w.want("changed later/root/a/plugin.toml")

	symlink(t, "v2", w.path("next"))
	w.do(os.Rename(w.path("next"), w.path("current")))
	w.want("removed v1/plugin.toml", "added v2/plugin.toml")
	w.put("v2/plugin.toml", "3")
	w.want("changed v2/plugin.toml")
}

func TestWatchFollowLinks(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, ".store", "x", "real.toml"), "1")
	write(t, filepath.Join(dir, "a", "keep"), "")
	symlink(t, "../.store/x/real.toml", filepath.Join(dir, "a", "plugin.toml"))
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{".store"}, FollowLinks: true}, nil)

	w.put(".store/x/real.toml", "2")
	w.want("changed a/plugin.toml")
	w.put(".store/y/plugin.toml", "1")
	symlink(t, ".store/y", w.path("y"))
	w.want("added .store/y/plugin.toml")
	w.do(os.Remove(w.path("y")))
	w.want("removed .store/y/plugin.toml")
	if list := w.fs.WatchList(); slices.Contains(list, w.path(".store/y")) {
		t.Errorf("directories out of reach are still watched: %q", list)
	}
}

// TestConcerns: files that an extension writes next to its manifest must not cause a walk.
func TestConcerns(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "sub", "deep", "dir", "file"), "")
	symlink(t, "sub", filepath.Join(dir, "link"))
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []struct {
		op     fsnotify.Op
		name   string
		follow bool
		want   bool
	}{
		{fsnotify.Create, "sub/deep", false, true},
		{fsnotify.Create, "sub/deep/plugin.toml", false, true},
		{fsnotify.Write, "sub/deep/.mcp.json", false, true},
		{fsnotify.Chmod, "sub", false, true},
		{fsnotify.Write, "sub/log", false, false},
		{fsnotify.Create, "sub/vanished", false, false},
		{fsnotify.Remove, "sub/vanished", false, false},
		{fsnotify.Create, "link", false, false},
		{fsnotify.Create, "link", true, true},
	} {
		w := newWatcher(WatchOptions{FollowLinks: test.follow}, nil)
		w.dirs = map[string]bool{dir: true, path("sub"): true, path("sub/deep"): true}
		if test.name == "sub/deep" {
			delete(w.dirs, path("sub/deep"))
		}
		if got := w.concerns(fsnotify.Event{Name: path(test.name), Op: test.op}); got != test.want {
			t.Errorf("%v %s, follow %t: got %t, want %t", test.op, test.name, test.follow, got, test.want)
		}
	}
}

// TestWatchOverflow drops the events of a rename, as an overflow may; the watch below continues under the old name.
func TestWatchOverflow(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "a", "sub", "plugin.toml"), "1")
	w := watch(t, dir, WatchOptions{Roots: []string{dir}}, nil)
	fs := w.fs // the watcher replaces it only after it has received the overflow
	w.do(fs.Remove(dir))
	w.do(fs.Remove(w.path("a")))
	w.do(os.Rename(w.path("a"), w.path("b")))
	fs.Errors <- fsnotify.ErrEventOverflow
	w.want("removed a/sub/plugin.toml", "added b/sub/plugin.toml")
	w.put("b/sub/plugin.toml", "2")
	w.want("changed b/sub/plugin.toml")
}

// TestWatchTooMany: with more directories than may be watched, changes are found by reading everything again.
func TestWatchTooMany(t *testing.T) {
	dir := tempDir(t)
	for i := range 5 {
		write(t, filepath.Join(dir, fmt.Sprint(i), "plugin.toml"), "1")
	}
	w := watch(t, dir, WatchOptions{Roots: []string{dir}}, func(w *watcher) { w.maxWatches, w.poll = 1, 10*time.Millisecond })
	w.put("4/plugin.toml", "2")
	w.want("changed 4/plugin.toml")
	w.do(os.Remove(w.path("3/plugin.toml")))
	w.want("removed 3/plugin.toml")
}

// TestStamps: the times of manifests and roots show changes of which the system sends no events.
func TestStamps(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", manifest.FileName)
	write := func(text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	w := newWatcher(WatchOptions{Roots: []string{root}}, nil)
	defer w.close()
	for _, change := range []func(){
		func() { write("three") },
		func() { path = filepath.Join(root, "b", manifest.FileName); write("new") },
		func() {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		past := time.Now().Add(-time.Hour) // the clock of the file system may be coarse
		if err := os.Chtimes(root, past, past); err != nil {
			t.Fatal(err)
		}
		if w.rescan(t.Context()); !maps.Equal(w.seen, w.stamps()) {
			t.Errorf("without a change: %v, %v", w.seen, w.stamps())
		}
		if change(); maps.Equal(w.seen, w.stamps()) {
			t.Errorf("after a change: %v", w.seen)
		}
	}
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	Watch(ctx, WatchOptions{Roots: []string{t.TempDir()}, Ready: cancel}, nil)
	Watch(ctx, WatchOptions{Ready: func() { t.Error("Ready was called after the context ended") }}, nil)
}

// TestComparePartial: files that an interrupted walk did not reach are not reported as removed, now or later.
func TestComparePartial(t *testing.T) {
	w := newWatcher(WatchOptions{}, nil)
	w.files = map[string]sum{"a": {1}, "b": {1}, "c": {1}}
	if got := w.compare(map[string]sum{"b": {2}, "d": {1}}, true); !slices.Equal(got, []Change{{"b", Changed}, {"d", Added}}) {
		t.Errorf("partial: got %v", got)
	}
	if got := w.compare(map[string]sum{"a": {1}, "b": {2}}, false); !slices.Equal(got, []Change{{"c", Removed}, {"d", Removed}}) {
		t.Errorf("whole: got %v", got)
	}
}

func TestSumOf(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "a"), "text")
	write(t, filepath.Join(dir, "b"), "text")
	write(t, filepath.Join(dir, "over"), strings.Repeat("x", manifest.MaxFile+9))
	if sumOf(filepath.Join(dir, "a")) != sumOf(filepath.Join(dir, "b")) {
		t.Error("equal files have unequal sums")
	}
	sums := map[sum]string{}
	for _, name := range []string{"a", "over", "missing", "."} {
		s := sumOf(filepath.Join(dir, name))
		if was, twice := sums[s]; twice {
			t.Errorf("%s has the sum of %s", name, was)
		}
		sums[s] = name
	}
}
