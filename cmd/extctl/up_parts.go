package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/door"
	"github.com/extmesh/extmesh/internal/localmesh"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/sourcewatch"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// planBridge reads the settings and checks the directories before anything starts.
func planBridge(o upOptions, logger *slog.Logger) (bridge.Config, error) {
	host, _ := os.Hostname() // for display only; may be empty
	c := bridge.Config{
		Name: cmp.Or(o.name, defaultName(o)), Host: host, Version: daemon.Version(), StateDir: bridge.DefaultStateDir(), Environ: os.Environ(),
		Reread: func() (config.Config, error) { return upSettings(o, logger) }, Logger: logger, Quiet: true, // report prints the findings
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

// upSettings reads the settings of the bridge in extctl up. It applies changed manifests without extctl reload, unless an
// extensions.yaml says otherwise: an author at a desk wants that.
func upSettings(o upOptions, logger *slog.Logger) (config.Config, error) {
	c, err := config.Default(), error(nil)
	if c.SearchPaths = o.dirs; !o.noConfig {
		c, err = bridge.Settings(o.config, o.dirs, logger)
	}
	if o.joinsUp && len(o.dirs) > 0 && o.config == "" {
		c.Links = nil // the extctl up that is joined runs them
	}
	if o.watch || !c.Watch.NoReload {
		c.Watch.Enabled, c.Watch.Reload = c.Watch.Enabled || o.watch, true
	}
	return c, err
}

// upMCP is the MCP server of extctl up --mcp.
type upMCP struct {
	link     *mcpLink
	listener net.Listener
	http     door.HTTPOptions
	url      string
}

// newUpMCP opens the listener, so that an address in use is reported before anything starts. Without an address there is no server.
func newUpMCP(a *app, addr, tokens string, logger *slog.Logger) (*upMCP, error) {
	if addr == "" {
		if tokens != "" {
			return nil, usage("--mcp-tokens needs --mcp")
		}
		return nil, nil
	}
	if _, local, err := localAddr(addr); !strings.HasPrefix(addr, "unix:") && (err != nil || !local) {
		return nil, usage("--mcp %q: want an address of this machine, such as 127.0.0.1:7331; for others use extctl mcp --http with --tokens", addr)
	}
	d, err := door.New(door.Options{Logger: logger, Version: daemon.Version(), Wait: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	link, err := newMCPLink(a, d, logger, "")
	if err != nil {
		return nil, err
	}
	var known *door.Tokens
	if tokens != "" {
		if known, err = door.LoadTokens(tokens, logger); err != nil {
			return nil, daemon.UsageError{Err: fmt.Errorf("--mcp-tokens: %w", err)}
		}
	}
	flags := httpFlags{addr: addr, drain: time.Second}
	u := &upMCP{link: link}
	u.listener, u.http, u.url, err = flags.listen(logger)
	if f, ok := errors.AsType[*failure](err); ok {
		f.hint = "choose another address with --mcp"
	}
	u.http.Tokens, u.http.Dial = known, link.dial
	return u, err
}

func (u *upMCP) close() {
	if u != nil {
		u.listener.Close()
	}
}

// run serves MCP clients until ctx ends.
func (u *upMCP) run(ctx context.Context, target daemon.Target) error {
	var background sync.WaitGroup
	defer background.Wait()
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the calls in flight complete after ctx has ended
	defer cancel()
	background.Go(func() { _ = u.link.door.Run(whole) }) // ends with whole
	background.Go(func() {                               // ends with whole
		for logged := false; whole.Err() == nil; pause.For(whole, retryEvery) { // a mesh may end before this process, and come back
			err := u.link.connect(whole, target)
			if err != nil && ctx.Err() == nil && !logged {
				u.link.logger.Error("the MCP server cannot reach the mesh", "error", err)
			}
			logged = err != nil
		}
	})
	if err := u.link.door.ServeHTTP(ctx, u.listener, u.http); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the MCP server: %w", err)
	}
	return nil
}

// watchSources looks at the files of the extensions, before one starts, and returns the part that restarts those whose files
// change.
func (m *localMesh) watchSources(ctx context.Context) localmesh.Part {
	w := sourcewatch.New(ctx, sourcewatch.Config{
		Scan: func(ctx context.Context) []discovery.Candidate {
			c := m.bridge
			if now, err := m.settings(); err == nil { // what is linked, enabled or disabled later counts, too
				c.Settings = now
			}
			return bridge.NewLocal(c).Scan(ctx).Candidates
		},
		Ignore: m.bridge.Settings.IgnoreDirs, Note: m.note,
	})
	return func(ctx context.Context, nc *nats.Conn) error {
		s := &session{app: m.app, nc: nc, prefix: m.bridge.Prefix}
		w.Run(ctx, func(ctx context.Context, c discovery.Candidate) error { return restartParts(ctx, s, m.bridge.Name, c) })
		return nil
	}
}

// restartParts restarts the programs of an extension and its members on a bridge. First the bridge reads all manifests
// again: a file that has changed may be one whose content or existence a manifest refers to.
func restartParts(ctx context.Context, s *session, on string, c discovery.Candidate) error {
	reloading, cancel := context.WithTimeout(ctx, requestTimeout)
	reloaded := requestBridge[bridge.Reloaded](reloading, s, on, "reload", nil) // the bridge logs what it cannot read
	cancel()
	ctx, cancel = context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var failed error
	for _, part := range append([]*manifest.Manifest{c.Manifest}, c.Manifest.Members()...) {
		isNew := slices.Contains(reloaded.parsed.Started, part.Plugin.ID) || slices.Contains(reloaded.parsed.Replaced, part.Plugin.ID)
		if isNew || part.Container() || part.Transport.Type != manifest.Stdio {
			continue
		}
		err := requestBridge[operated](ctx, s, on, "restart", map[string]any{"id": part.Plugin.ID}).err
		if exitCode(err) == exitNotFound { // the bridge does not run it: it is disabled, or its manifest has just been added
			err = nil
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}
