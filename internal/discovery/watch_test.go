package discovery

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/manifest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// watching is a Watch that runs until the test ends, in a synctest bubble: its pauses take no time.
type watching struct {
	t       *testing.T
	dir     string // the names of put and path are relative to it
	reports chan time.Time
}

func watch(t *testing.T, dir string, opt WatchOptions) *watching {
	t.Helper()
	ready := make(chan struct{})
	opt.Ready = func() { close(ready) }
	w := &watching{t: t, dir: dir, reports: make(chan time.Time, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	// Owned by the test; its cleanup ends it and waits for it.
	go func() { Watch(ctx, opt, func() { w.reports <- time.Now() }); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	<-ready
	return w
}

// changed waits for a report, and returns its time. There must be no other one after it.
func (w *watching) changed() time.Time {
	w.t.Helper()
	select {
	case at := <-w.reports:
		w.unchanged()
		return at
	case <-time.After(time.Minute):
		w.t.Fatal("no change was reported")
		panic("not reached")
	}
}

// unchanged fails if there is a report in a time that several looks and the debounce fit in. That time ends between two looks,
// so that none is made while the test changes files.
func (w *watching) unchanged() {
	w.t.Helper()
	select {
	case <-w.reports:
		w.t.Fatal("a change was reported")
	case <-time.After(10*shortestPause + shortestPause/10):
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

func TestWatch(t *testing.T) { synctest.Test(t, testWatch) }

func testWatch(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "old", "plugin.toml"), "old")
	write(t, filepath.Join(dir, "keep", "a", "plugin.toml"), "keep")
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{"node_modules"}})

	w.put("new/deep/er/plugin.toml", "1")
	w.changed()
	w.put("new/deep/er/plugin.toml", "2")
	w.changed()
	w.put("old/.mcp.json", "{}")
	w.changed()
	w.put("old/.mcp.json", "{ }")
	w.changed()

	// A change of the same length that keeps the time of the file, as rsync and tar make it.
	info, err := os.Stat(w.path("old/.mcp.json"))
	w.do(err)
	w.do(os.WriteFile(w.path("old/.mcp.json"), []byte("[ ]"), 0o600))
	w.do(os.Chtimes(w.path("old/.mcp.json"), info.ModTime(), info.ModTime()))
	w.changed()

	// None of these is a change.
	w.put("old/plugin.toml", "old")
	w.do(os.Chtimes(w.path("old/plugin.toml"), time.Now(), time.Now()))
	w.put("old/main.py", "")
	w.put("node_modules/x/plugin.toml", "ignored")
	w.put("1/2/3/4/plugin.toml", "too deep")
	w.put("x/..2026_11_27/plugin.toml", "of a ConfigMap that is mounted")
	w.unchanged()
	w.put("last/plugin.toml", "1")
	w.changed()

	w.do(os.Remove(w.path("old/plugin.toml")))
	w.changed()
	w.do(os.Remove(w.path("old/.mcp.json")))
	w.changed()
	w.put("alone/.mcp.json", "{}")
	w.changed()
	w.do(os.RemoveAll(w.path("new")))
	w.changed()
	w.put("new/deep/er/plugin.toml", "3")
	w.changed()
}

// TestWatchRename moves directories within the root, out of it and into it.
func TestWatchRename(t *testing.T) { synctest.Test(t, testWatchRename) }

func testWatchRename(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "root", "a", "sub", "plugin.toml"), "1")
	w := watch(t, dir, WatchOptions{Roots: []string{filepath.Join(dir, "root")}})

	w.do(os.Rename(w.path("root/a"), w.path("root/b")))
	w.changed()
	w.put("root/b/sub/plugin.toml", "2")
	w.changed()
	w.put("root/a/sub/plugin.toml", "3")
	w.changed()

	w.do(os.Rename(w.path("root/b"), w.path("outside")))
	w.changed()
	w.put("outside/sub/plugin.toml", "not watched")
	w.unchanged()
	w.put("root/a/sub/plugin.toml", "4")
	w.changed()
	w.do(os.Rename(w.path("outside"), w.path("root/c")))
	w.changed()
}

// TestWatchSquash: one report is for all changes, also those between the look that finds one and the report.
func TestWatchSquash(t *testing.T) { synctest.Test(t, testWatchSquash) }

func testWatchSquash(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "a", "plugin.toml"), "1")
	w := watch(t, dir, WatchOptions{Roots: []string{dir}})
	began := time.Now()
	w.put("a/plugin.toml", "2")
	w.put("b/plugin.toml", "half of")
	w.put("c/plugin.toml", "1")
	time.Sleep(shortestPause + DefaultDebounce/2)
	w.do(os.RemoveAll(w.path("a")))
	w.put("a/plugin.toml", "1")
	w.put("b/plugin.toml", "half of it, and the rest")
	w.do(os.Remove(w.path("c/plugin.toml")))
	w.put("d/plugin.toml", "1")
	if after := w.changed().Sub(began); after != shortestPause+DefaultDebounce {
		t.Errorf("reported after %v", after)
	}
	w.put("b/plugin.toml", "half of it, and the rest!")
	w.changed()

	w.put("b/plugin.toml", "a mistake")
	time.Sleep(shortestPause + DefaultDebounce/2)
	w.put("b/plugin.toml", "half of it, and the rest!")
	w.unchanged()
}

// TestWatchRoots: roots are created, removed and created again, and one is a link with a changing target.
func TestWatchRoots(t *testing.T) { synctest.Test(t, testWatchRoots) }

func testWatchRoots(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "v1", "plugin.toml"), "1")
	write(t, filepath.Join(dir, "v2", "plugin.toml"), "2")
	symlink(t, "v1", filepath.Join(dir, "current"))
	w := watch(t, dir, WatchOptions{Roots: []string{filepath.Join(dir, "later", "root"), filepath.Join(dir, "current")}})

	w.put("later/root/a/plugin.toml", "1")
	w.changed()
	w.do(os.Rename(w.path("later"), w.path("gone")))
	w.changed()
	w.put("staged/root/a/plugin.toml", "2")
	w.do(os.Rename(w.path("staged"), w.path("later")))
	w.changed()
	w.put("later/root/a/plugin.toml", "3")
	w.changed()

	symlink(t, "v2", w.path("next"))
	w.do(os.Rename(w.path("next"), w.path("current")))
	w.changed()
	w.put("v2/plugin.toml", "3")
	w.changed()
}

func TestWatchFollowLinks(t *testing.T) { synctest.Test(t, testWatchFollowLinks) }

func testWatchFollowLinks(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, ".store", "x", "real.toml"), "1")
	write(t, filepath.Join(dir, "a", "keep"), "")
	symlink(t, "../.store/x/real.toml", filepath.Join(dir, "a", "plugin.toml"))
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{".store"}, FollowLinks: true})

	w.put(".store/x/real.toml", "2")
	w.changed()
	w.put(".store/y/plugin.toml", "1")
	symlink(t, ".store/y", w.path("y"))
	w.changed()
	w.do(os.Remove(w.path("y")))
	w.changed()
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	Watch(ctx, WatchOptions{Roots: []string{t.TempDir()}, Ready: cancel}, nil)
	Watch(ctx, WatchOptions{Ready: func() { t.Error("Ready was called after the context ended") }}, nil)
}

// TestIncomplete: files that an interrupted walk did not reach do not count as removed.
func TestIncomplete(t *testing.T) {
	before := map[string]sum{"a": {1}, "b": {1}, "c": {1}}
	partial := map[string]sum{"b": {2}, "d": {1}}
	keepMissing(partial, before)
	if want := (map[string]sum{"a": {1}, "b": {2}, "c": {1}, "d": {1}}); !maps.Equal(partial, want) {
		t.Errorf("got %v, want %v", partial, want)
	}

	dir := tempDir(t)
	write(t, filepath.Join(dir, "plugin.toml"), "1")
	w := &watcher{opt: WatchOptions{Roots: []string{dir}}}
	w.files = w.look(t.Context())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.look(ended); len(got) != 1 || !maps.Equal(got, w.files) {
		t.Errorf("an interrupted look: got %v, want %v", got, w.files)
	}
}

func TestPauseAfter(t *testing.T) {
	for look, want := range map[time.Duration]time.Duration{
		0:                     shortestPause,
		5 * time.Millisecond:  shortestPause,
		40 * time.Millisecond: 4 * time.Second,
		time.Minute:           longestPause,
	} {
		if got := pauseAfter(look); got != want {
			t.Errorf("after a look of %v: a pause of %v, want %v", look, got, want)
		}
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
