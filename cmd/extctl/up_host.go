package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// hostPlan is what the bridge of an extctl up is to run.
type hostPlan struct {
	name     string
	stateDir string
	settings config.Config
	reread   func() (config.Config, error)
}

// planHost reads the settings and checks the directories before anything is started.
func (a *app) planHost(o upOptions, logger *slog.Logger) (hostPlan, error) {
	p := hostPlan{
		name: cmp.Or(o.name, bridge.DefaultName()), stateDir: bridge.DefaultStateDir(),
		reread: func() (config.Config, error) { return bridge.Settings(o.config, o.dirs, logger) },
	}
	if o.data != "" {
		p.stateDir = filepath.Join(o.data, "extensions")
	}
	if err := bridge.CheckName(p.name); err != nil {
		return p, usage("--name: %w", err)
	}
	var err error
	if p.settings, err = p.reread(); err != nil {
		return p, daemon.UsageError{Err: err, Hint: "mend the file; nothing was started"}
	}
	if err := checkDirs(o.dirs); err != nil {
		return p, daemon.UsageError{Err: err}
	}
	if len(o.dirs) == 0 && checkDirs(p.settings.SearchPaths) != nil {
		a.note("not every directory of %s is here: give `extctl up` the one with your extensions", strings.Join(p.settings.SearchPaths, ", "))
	}
	return p, nil
}

// withoutFindings is a logger that leaves out why manifests were refused: report tells that, from the catalog, as
// every other terminal can.
func withoutFindings(l *slog.Logger) *slog.Logger { return slog.New(findingsFilter{l.Handler()}) }

type findingsFilter struct{ slog.Handler }

// Handle drops what the bridge says of a refused manifest.
func (f findingsFilter) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "manifest refused" {
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

// WithAttrs keeps the filter.
func (f findingsFilter) WithAttrs(a []slog.Attr) slog.Handler {
	return findingsFilter{f.Handler.WithAttrs(a)}
}

// WithGroup keeps the filter.
func (f findingsFilter) WithGroup(name string) slog.Handler {
	return findingsFilter{f.Handler.WithGroup(name)}
}

// checkDirs names all that are no directories.
func checkDirs(dirs []string) error {
	var faults []error
	for _, d := range dirs {
		if info, err := os.Stat(d); err != nil {
			faults = append(faults, err)
		} else if !info.IsDir() {
			faults = append(faults, fmt.Errorf("%s is not a directory", d))
		}
	}
	return errors.Join(faults...)
}

// registryConfig is what the registry of an extctl up is to know; it judges the instances of this one host.
func (m *ownMesh) registryConfig() registry.Config {
	return registry.Config{
		Prefix: m.prefix, Version: daemon.Version(), Logger: m.logger,
		Heartbeat: heartbeat.Config{Interval: m.host.settings.HeartbeatInterval, Grace: m.host.settings.HeartbeatGraceFactor},
	}
}

// runBridge runs the bridge until ctx ends and nothing of it is left.
func (m *ownMesh) runBridge(ctx context.Context) error {
	host, _ := os.Hostname() // for people; an unknown one is no fault
	return bridge.New(m.bridgeNC, bridge.Config{
		Name: m.host.name, Host: host, Prefix: m.prefix, Version: daemon.Version(),
		Settings: m.host.settings, Reread: m.host.reread, StateDir: m.host.stateDir, Watchdog: m.watchdog, Logger: withoutFindings(m.logger),
	}).Run(ctx)
}
