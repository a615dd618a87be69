package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/door"
)

// upMCP is the MCP server of extctl up --mcp.
type upMCP struct {
	link     *mcpLink
	listener net.Listener
	http     door.HTTPOptions
	url      string
}

// newUpMCP opens the listener, so that an address in use is reported before anything starts. Without an address there is no server.
func newUpMCP(a *app, addr string, logger *slog.Logger) (*upMCP, error) {
	if addr == "" {
		return nil, nil
	}
	if _, local, err := localAddr(addr); err != nil || !local {
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
	flags := httpFlags{addr: addr, drain: time.Second}
	u := &upMCP{link: link}
	u.listener, u.http, u.url, err = flags.listen(logger)
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background.Go(func() { _ = u.link.door.Run(ctx) }) // ends with ctx
	background.Go(func() {                             // ends with ctx
		if err := u.link.connect(ctx, target); err != nil && ctx.Err() == nil {
			u.link.logger.Error("the MCP server cannot reach the mesh", "error", err)
		}
	})
	if err := u.link.door.ServeHTTP(ctx, u.listener, u.http); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the MCP server: %w", err)
	}
	return nil
}
