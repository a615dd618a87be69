package discovery

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	dir     string // the changes' paths are relative to it
	changes chan []Change
}

func watch(t *testing.T, dir string, opt WatchOptions) *watching {
	t.Helper()
	ready := make(chan struct{})
	opt.Ready = func() { close(ready) }
	w := &watching{t: t, dir: dir, changes: make(chan []Change, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	// Owned by the test; its cleanup ends it and waits for it.
	go func() { Watch(ctx, opt, func(c []Change) { w.changes <- c }); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	<-ready
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

func TestWatch(t *testing.T) { synctest.Test(t, testWatch) }

func testWatch(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "old", "plugin.toml"), "old")
	write(t, filepath.Join(dir, "keep", "a", "plugin.toml"), "keep")
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{"node_modules"}})

	w.put("new/deep/er/plugin.toml", "1")
	w.want("added new/deep/er/plugin.toml")
	w.put("new/deep/er/plugin.toml", "2")
	w.want("changed new/deep/er/plugin.toml")
	w.put("old/.mcp.json", "{}")
	w.want("added old/.mcp.json")
	w.put("old/.mcp.json", "{ }")
	w.want("changed old/.mcp.json")

	// A change of the same length that keeps the time of the file, as rsync and tar make it.
	info, err := os.Stat(w.path("old/.mcp.json"))
	w.do(err)
	w.do(os.WriteFile(w.path("old/.mcp.json"), []byte("[ ]"), 0o600))
	w.do(os.Chtimes(w.path("old/.mcp.json"), info.ModTime(), info.ModTime()))
	w.want("changed old/.mcp.json")

	// None of these is a change; the last line shows when they were processed.
	w.put("old/plugin.toml", "old")
	w.do(os.Chtimes(w.path("old/plugin.toml"), time.Now(), time.Now()))
	w.put("old/main.py", "")
	w.put("node_modules/x/plugin.toml", "ignored")
	w.put("1/2/3/4/plugin.toml", "too deep")
	w.put("x/..2026_11_27/plugin.toml", "of a ConfigMap that is mounted")
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

// TestWatchRename moves directories within the root, out of it and into it.
func TestWatchRename(t *testing.T) { synctest.Test(t, testWatchRename) }

func testWatchRename(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "root", "a", "sub", "plugin.toml"), "1")
	w := watch(t, dir, WatchOptions{Roots: []string{filepath.Join(dir, "root")}})

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

// TestWatchSquash: a report has what differs after all changes, also those between the look that finds one and the report.
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
	w.want("added b/plugin.toml", "added d/plugin.toml")
	if after := time.Since(began); after != shortestPause+DefaultDebounce {
		t.Errorf("reported after %v", after)
	}
	w.put("b/plugin.toml", "half of it, and the rest!")
	w.want("changed b/plugin.toml")
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

func TestWatchFollowLinks(t *testing.T) { synctest.Test(t, testWatchFollowLinks) }

func testWatchFollowLinks(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, ".store", "x", "real.toml"), "1")
	write(t, filepath.Join(dir, "a", "keep"), "")
	symlink(t, "../.store/x/real.toml", filepath.Join(dir, "a", "plugin.toml"))
	w := watch(t, dir, WatchOptions{Roots: []string{dir}, IgnoreDirs: []string{".store"}, FollowLinks: true})

	w.put(".store/x/real.toml", "2")
	w.want("changed a/plugin.toml")
	w.put(".store/y/plugin.toml", "1")
	symlink(t, ".store/y", w.path("y"))
	w.want("added .store/y/plugin.toml")
	w.do(os.Remove(w.path("y")))
	w.want("removed .store/y/plugin.toml")
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	Watch(ctx, WatchOptions{Roots: []string{t.TempDir()}, Ready: cancel}, nil)
	Watch(ctx, WatchOptions{Ready: func() { t.Error("Ready was called after the context ended") }}, nil)
}

// TestIncomplete: files that an interrupted walk did not reach are not reported as removed, now or later.
func TestIncomplete(t *testing.T) {
	before := map[string]sum{"a": {1}, "b": {1}, "c": {1}}
	partial := map[string]sum{"b": {2}, "d": {1}}
	keepMissing(partial, before)
	if got := difference(before, partial); !slices.Equal(got, []Change{{"b", Changed}, {"d", Added}}) {
		t.Errorf("partial: got %v", got)
	}
	if got := difference(partial, map[string]sum{"a": {1}, "b": {2}}); !slices.Equal(got, []Change{{"c", Removed}, {"d", Removed}}) {
		t.Errorf("whole: got %v", got)
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
