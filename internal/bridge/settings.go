package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/adrg/xdg"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// Settings reads extensions.yaml. An empty path means config.DefaultPath, which may be missing. searchPaths, if any,
// replace the search paths of the file. The error lists all faults of the file with their positions, one per line.
func Settings(path string, searchPaths []string, log *slog.Logger) (config.Config, error) {
	named := path != ""
	if !named {
		path = config.DefaultPath
	}
	c, diagnostics := config.Load(path, named)
	var faults []error
	for _, d := range diagnostics {
		if d.Level == manifest.Error {
			faults = append(faults, errors.New(d.String()))
			continue
		}
		log.Warn("configuration loaded with a warning", "path", d.Path, "line", d.Line, "key", d.Key, "problem", d.Message)
	}
	if len(searchPaths) > 0 {
		c.SearchPaths = searchPaths
	}
	if len(faults) > 0 {
		return c, fmt.Errorf("%s cannot be used:\n%w", path, errors.Join(faults...))
	}
	return c, nil
}

// CheckDirs reports every path that is not a directory: one that a person has typed is a mistake.
func CheckDirs(dirs []string) error {
	var faults []error
	for _, d := range dirs {
		if info, err := os.Stat(d); errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("there is no directory %s", d))
		} else if err != nil {
			faults = append(faults, err)
		} else if !info.IsDir() {
			faults = append(faults, fmt.Errorf("%s is not a directory", d))
		}
	}
	return errors.Join(faults...)
}

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

// CheckName checks the name of a bridge: it has the syntax of an id and must not be one that the mesh reserves.
func CheckName(name string) error {
	if err := wire.CheckID(name, false); err != nil {
		return err
	}
	if manifest.Reserved(name) {
		return fmt.Errorf("%q is reserved; choose another, bridge-%s for example", name, name)
	}
	return nil
}

// DefaultName returns the name of a bridge that is not given one: the first label of the host name.
func DefaultName() string {
	host, _ := os.Hostname() // if that fails, the name is bridge-0
	return nameOf(host)
}

func nameOf(host string) string {
	label, _, _ := strings.Cut(strings.ToLower(host), ".")
	name := strings.Trim(notInNames.ReplaceAllString(label, "-"), "-_")
	if name == "" || name[0] < 'a' || name[0] > 'z' || manifest.Reserved(name) {
		name = "bridge-" + cmp.Or(name, "0")
	}
	return name[:min(len(name), 64)]
}

// DefaultStateDir is the default directory for the extensions' state: extmesh/extensions in the user's state directory.
func DefaultStateDir() string { return filepath.Join(xdg.StateHome, "extmesh", "extensions") }

// Watchdog ensures that no process started by this one outlives it, even if it is killed. A main function calls
// child.MaybeGuard first, then Watchdog before it runs a Bridge, and stop at the end. If the system does not support it,
// that is logged and the program continues.
//
// StartWatchdog does the same in the background.
func Watchdog(log *slog.Logger) (stop func()) {
	if err := child.Subreaper(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		log.Warn("cannot adopt the orphaned processes of children; they may be left running", "error", err)
	}
	alone := func(err error) {
		level := slog.LevelWarn
		if errors.Is(err, errors.ErrUnsupported) { // which nobody can change; on Windows, the children are in a job and end all the same
			level = slog.LevelDebug
		}
		log.Log(context.Background(), level, "no guard: children may outlive this process if it is killed", "error", err)
	}
	stop, err := child.Guard(alone)
	if err != nil {
		alone(err)
		return func() {}
	}
	return stop
}

// StartWatchdog runs Watchdog in the background. await waits until it is done; pass it as Config.Watchdog.
func StartWatchdog(log *slog.Logger) (await, stop func()) {
	var end func()
	there := make(chan struct{})
	go func() { // ends when the guard has started
		end = Watchdog(log)
		close(there)
	}()
	return func() { <-there }, func() { <-there; end() }
}
