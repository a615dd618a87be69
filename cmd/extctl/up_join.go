package main

import (
	"context"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/terminal"
)

// runJoin runs a bridge on a mesh that exists, until ctx ends.
func runJoin(ctx context.Context, a *app, o upOptions) error {
	if o.listenChosen || o.data != "" {
		f := fail(exitUsage, "--join excludes --listen and --data: the mesh has its NATS server already")
		f.hint = "--server and --context choose the mesh"
		return f
	}
	for _, dir := range o.dirs {
		if strings.Contains(dir, "://") {
			f := fail(exitUsage, "%s is not a directory", dir)
			f.hint = "the address of the mesh is a flag: extctl up --join --server " + terminal.ShellWord(dir) + " DIR"
			return f
		}
	}
	m, err := planMesh(a, o)
	if err != nil {
		return err
	}
	target, err := a.nats.Resolve()
	if err != nil {
		return err
	}
	if m.mcp, err = a.newUpMCP(o.mcp, m.logger); err != nil {
		return err
	}
	if m.mcp != nil {
		defer m.mcp.listener.Close()
	}
	m.url, m.started, m.mesh = target.Addr(), time.Now().Truncate(time.Millisecond), gate.Credentials(target.Secrets)
	switch {
	case a.nats.Server != "":
		m.flags += " --server " + terminal.ShellWord(m.url)
	case a.nats.Context != "":
		m.flags += " --context " + terminal.ShellWord(a.nats.Context)
	}
	defer m.disconnect()
	if err := m.connect(ctx, target); err != nil {
		return explainConnect(ctx, target, err)
	}
	var stopWatchdog func()
	m.watchdog, stopWatchdog = bridge.StartWatchdog(m.logger)
	defer stopWatchdog()
	err = m.run(ctx, target)
	if ctx.Err() != nil {
		a.note("stopped")
	}
	return err
}
