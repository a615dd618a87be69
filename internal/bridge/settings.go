package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/adrg/xdg"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Settings reads extensions.yaml. An empty path is config.DefaultPath, which may be missing. searchPaths, if
// there are any, stand in for the file's. The error is every fault of the file, each with its place, on a line of
// its own.
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
		log.Warn("configuration taken with a warning", "path", d.Path, "line", d.Line, "key", d.Key, "problem", d.Message)
	}
	if len(searchPaths) > 0 {
		c.SearchPaths = searchPaths
	}
	if len(faults) > 0 {
		return c, fmt.Errorf("%s cannot be used:\n%w", path, errors.Join(faults...))
	}
	return c, nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

// CheckName checks the name of a bridge: it is written like an id, and none of those that the mesh uses itself.
func CheckName(name string) error {
	if err := mesh.CheckID(name, false); err != nil {
		return err
	}
	if manifest.Reserved(name) {
		return fmt.Errorf("%q is reserved; choose another, bridge-%s for example", name, name)
	}
	return nil
}

// DefaultName is the name of a bridge that was given none: the first label of the host's name.
func DefaultName() string {
	host, _ := os.Hostname() // without one it is bridge-0
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

// DefaultStateDir is where extensions keep their state unless told otherwise: extmesh/extensions in the user's
// state directory.
func DefaultStateDir() string { return filepath.Join(xdg.StateHome, "extmesh", "extensions") }

// Watchdog makes sure that nothing which this process starts outlives it, however it ends. A main calls it
// before it runs a Bridge, having called child.MaybeGuard first thing, and stop at the end. Where the system
// cannot do it, that is logged and the rest goes on.
//
// StartWatchdog does it beside other things.
func Watchdog(log *slog.Logger) (stop func()) {
	if err := child.Subreaper(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		log.Warn("orphans of children cannot be adopted", "error", err)
	}
	alone := func(err error) {
		log.Warn("no guard: children may outlive this process if it is killed", "error", err)
	}
	stop, err := child.Guard(alone)
	if err != nil {
		alone(err)
		return func() {}
	}
	return stop
}

// StartWatchdog is Watchdog in the background: await waits until it is there, which is Config.Watchdog.
func StartWatchdog(log *slog.Logger) (await, stop func()) {
	var end func()
	there := make(chan struct{})
	go func() { // ends when the guard has been started
		end = Watchdog(log)
		close(there)
	}()
	return func() { <-there }, func() { <-there; end() }
}
