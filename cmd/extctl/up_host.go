package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
)

// planBridge reads the settings and checks the directories before anything starts.
func planBridge(o upOptions, logger *slog.Logger) (bridge.Config, error) {
	host, _ := os.Hostname() // for display only; may be empty
	c := bridge.Config{
		Name: cmp.Or(o.name, defaultName(o)), Host: host, Version: daemon.Version(), StateDir: bridge.DefaultStateDir(), Environ: os.Environ(),
		Reread: func() (config.Config, error) { return upSettings(o, logger) }, Logger: withoutFindings(logger),
	}
	if o.data != "" {
		c.StateDir = filepath.Join(o.data, "extensions")
	}
	if err := bridge.CheckName(c.Name); err != nil {
		return c, usage("--name: %w", err)
	}
	var err error
	if c.Settings, err = c.Reread(); err != nil {
		return c, daemon.UsageError{Err: err, Hint: "fix the file; nothing was started"}
	}
	if err := bridge.CheckDirs(o.dirs); err != nil {
		return c, daemon.UsageError{Err: err}
	}
	return c, nil
}

// defaultName is the name of a bridge that is not given one. On a mesh that exists, the host's name is often in use.
func defaultName(o upOptions) string {
	name := bridge.DefaultName()
	if !o.join {
		return name
	}
	dir := "extensions"
	if len(o.dirs) > 0 {
		dir = o.dirs[0]
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	if joined := name + "-" + strings.ToLower(filepath.Base(dir)); bridge.CheckName(joined) == nil {
		return joined
	}
	return name + "-2"
}

// upSettings reads the settings of the bridge in extctl up. It applies changed manifests at once, unless an extensions.yaml
// says otherwise: an author at a desk wants that.
func upSettings(o upOptions, logger *slog.Logger) (config.Config, error) {
	c, err := bridge.Settings(o.config, o.dirs, logger)
	if o.watch || !c.Watch.NoReload {
		c.Watch.Enabled, c.Watch.Reload = c.Watch.Enabled || o.watch, true
	}
	return c, err
}

// withoutFindings is a logger that omits the reasons for refused manifests and for search paths without extensions: report
// prints them.
func withoutFindings(l *slog.Logger) *slog.Logger { return slog.New(findingsFilter{l.Handler()}) }

type findingsFilter struct{ slog.Handler }

// Handle drops the bridge's messages that report prints.
func (f findingsFilter) Handle(ctx context.Context, r slog.Record) error {
	known := r.Message == "manifest refused"
	r.Attrs(func(a slog.Attr) bool {
		known = known || a.Key == "key" && a.Value.String() == "extensions.search_paths"
		return !known
	})
	if known {
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
