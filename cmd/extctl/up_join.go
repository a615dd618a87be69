package main

import (
	"context"
	"strings"

	"github.com/extmesh/extmesh/internal/bridge"
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
	defer m.mcp.close()
	target, err := a.nats.Resolve()
	if err != nil {
		return err
	}
	m.url = target.Addr()
	switch {
	case a.nats.Server != "":
		m.flags += " --server " + terminal.ShellWord(m.url)
	case a.nats.Context != "":
		m.flags += " --context " + terminal.ShellWord(a.nats.Context)
	}
	var stopWatchdog func()
	m.bridge.Watchdog, stopWatchdog = bridge.StartWatchdog(m.logger)
	defer stopWatchdog()
	err = explainConnect(ctx, target, m.run(ctx, target))
	if ctx.Err() != nil {
		a.note("stopped")
	}
	return err
}
