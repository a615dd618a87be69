// Package sourcewatch restarts an extension when a file in its directory changes.
package sourcewatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/manifest"
)

const (
	// sourcePoll is how often --watch looks at the files. A change counts when two looks in a row find the same.
	sourcePoll = 300 * time.Millisecond
	// maxPause limits the pause between two looks at a large tree or one on a slow file system.
	maxPause = 2 * time.Second
	// maxSources limits the files of one extension that --watch looks at.
	maxSources = 10_000
	// An extension that changes files in its own directory would be restarted for ever: it is left alone for sourceRest
	// after maxSourceRestarts within sourceWindow, or if its files do not stop changing for longest.
	maxSourceRestarts = 6
	sourceWindow      = 20 * time.Second
	longest           = 15 * time.Second
	sourceRest        = time.Minute
)

var errTooManySources = fmt.Errorf("its directory has more than %d files", maxSources)

// sourceDir is what is known of the directory of an extension.
type sourceDir struct {
	started  map[string]stamp // the files when the extension was last started
	last     map[string]stamp // the files at the last look
	changing time.Time        // since when they have been different from started; zero: they are not
	restarts []time.Time      // within sourceWindow
	restsTo  time.Time        // not looked at before
	tooMany  bool             // files, as has been printed
}

// stamp shows whether a file is still the same.
type stamp struct {
	size int64
	mod  time.Time
	mode fs.FileMode
}

// look compares the files with those with which the extension was started. It returns the first one that is different, as
// soon as the changes are complete: until then, and without a change, it returns "".
func (d *sourceDir) look(files map[string]stamp, now time.Time) (changed string) {
	if d.started == nil {
		d.started, d.last = files, files
		return ""
	}
	changed = different(d.started, files)
	complete := different(d.last, files) == ""
	d.last = files
	switch {
	case changed == "":
		d.changing = time.Time{}
		return ""
	case d.changing.IsZero():
		d.changing = now
	}
	endless := !complete && now.Sub(d.changing) > longest
	if !complete && !endless {
		return ""
	}
	d.started, d.changing = files, time.Time{}
	d.restarts = slices.DeleteFunc(append(d.restarts, now), func(t time.Time) bool { return now.Sub(t) > sourceWindow })
	if endless || len(d.restarts) >= maxSourceRestarts {
		d.restarts, d.restsTo = nil, now.Add(sourceRest)
	}
	return changed
}

// different is the first file that only one of a and b has, or that is not the same in both.
func different(a, b map[string]stamp) string {
	var names []string
	for name, s := range a {
		if t, ok := b[name]; !ok || t != s {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// sources are the files in dir that can change what an extension does: not the manifest, which the bridge itself watches,
// not hidden ones, and not what editors, compilers and package managers write.
func sources(ctx context.Context, dir string, ignore []string) (map[string]stamp, error) {
	files := map[string]stamp{}
	entries := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir || errors.Is(err, fs.ErrNotExist) { // it may have been removed
			return nil
		}
		if entries++; entries > 10*maxSources || len(files) > maxSources {
			return errTooManySources
		}
		name := d.Name()
		skip := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") // Emacs saves what is being typed as #name#
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case d.IsDir() && (skip || err != nil || name == "__pycache__" || name == "node_modules" || slices.Contains(ignore, name) || isVenv(path)):
			return filepath.SkipDir
		case d.IsDir(), skip, name == manifest.FileName, strings.HasSuffix(name, "~"),
			slices.Contains([]string{".pyc", ".swp", ".tmp", ".log"}, filepath.Ext(name)):
			return nil
		}
		info, err := d.Info()
		if err != nil { // removed in the meantime
			return nil
		}
		rel, _ := filepath.Rel(dir, path) // path is below dir
		files[rel] = stamp{info.Size(), info.ModTime(), info.Mode()}
		return nil
	})
	return files, err
}

// isVenv reports whether dir is a Python virtual environment.
func isVenv(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "pyvenv.cfg"))
	return err == nil
}

// Config is what a Watcher works on.
type Config struct {
	Scan   func(context.Context) []discovery.Candidate // finds the extensions
	Ignore []string                                    // names of directories with files that do not count
	Note   func(format string, args ...any)            // gets a line for people about each restart
}

// Restart restarts the programs of an extension, or replaces them if their manifest, with what it refers to, has changed.
type Restart func(context.Context, discovery.Candidate) error

// Watcher restarts extensions whose files change.
type Watcher struct {
	Config
	restart Restart
	dirs    map[string]*sourceDir // by path
}

// New looks at the files for the first time; the extensions are not to be started before.
func New(ctx context.Context, c Config) *Watcher {
	w := &Watcher{Config: c, dirs: map[string]*sourceDir{}}
	w.look(ctx)
	return w
}

// Run looks at the files until ctx ends.
func (w *Watcher) Run(ctx context.Context, restart Restart) {
	w.restart = restart
	pause := sourcePoll
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		if changing := w.look(ctx); changing {
			pause = sourcePoll
		} else {
			pause = min(max(sourcePoll, 20*time.Since(began)), maxPause) // a large tree does not keep a processor busy
		}
	}
}

// look looks at all extensions, and reports whether the files of one are changing.
func (w *Watcher) look(ctx context.Context) (changing bool) {
	found := map[string]bool{}
	for _, c := range w.Scan(ctx) {
		if !slices.ContainsFunc(append(c.Manifest.Members(), c.Manifest), hasProgram) {
			continue
		}
		found[c.Root] = true
		if w.dirs[c.Root] == nil {
			w.dirs[c.Root] = &sourceDir{}
		}
		w.lookAt(ctx, c, w.dirs[c.Root])
		changing = changing || !w.dirs[c.Root].changing.IsZero()
	}
	maps.DeleteFunc(w.dirs, func(root string, _ *sourceDir) bool { // while a manifest is broken, its extension still runs
		_, err := os.Stat(root)
		return !found[root] && err != nil
	})
	return changing
}

// hasProgram reports whether a manifest has a program that a bridge starts.
func hasProgram(m *manifest.Manifest) bool {
	return !m.Container() && m.Transport.Type == manifest.Stdio
}

// lookAt restarts the extension c if its files have changed.
func (w *Watcher) lookAt(ctx context.Context, c discovery.Candidate, d *sourceDir) {
	if time.Now().Before(d.restsTo) {
		return
	}
	id := terminal.Clean(c.Manifest.Plugin.ID)
	files, err := sources(ctx, c.Root, w.Ignore)
	if tooMany := errors.Is(err, errTooManySources); tooMany != d.tooMany && ctx.Err() == nil {
		if d.tooMany = tooMany; tooMany {
			w.Note("--watch does not watch %s: %v; keep data in another directory, or add directories to ignore_dirs in extensions.yaml", id, err)
		}
	}
	if err != nil {
		d.restsTo = time.Now().Add(maxPause)
		return
	}
	changed := d.look(files, time.Now())
	if changed == "" {
		return
	}
	w.Note("%s  restarting %s: %s changed", time.Now().Format(time.TimeOnly), id, terminal.Clean(changed))
	if err := w.restart(ctx, c); err != nil && ctx.Err() == nil {
		w.Note("%s was not restarted: %v", id, err)
	}
	if time.Now().Before(d.restsTo) {
		w.Note("--watch does not restart %s for a minute, because files in its directory change all the time, such as %s; a program should write its own files to EXTMESH_STATE_DIR", id, terminal.Clean(changed))
	}
}
