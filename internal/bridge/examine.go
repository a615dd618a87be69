package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// What follows is a bridge's work on one host, without a mesh and one step at a time, for extctl's local verbs:
// what they find is what a Bridge with the same Config would.

// Scan finds the extensions of this host. Of cfg it needs Settings and Version.
func Scan(ctx context.Context, cfg Config) discovery.Report { return New(nil, cfg).scan(ctx) }

// ManifestOptions are what a Bridge with cfg's Settings and Version holds manifests to.
func ManifestOptions(cfg Config) manifest.Options {
	return manifest.Options{AgentVersion: New(nil, cfg).agentVersion(), ReservedIDs: cfg.Settings.ReservedIDs}
}

// Preflight is what can be said of an extension, or of a member of one, before it is started.
type Preflight struct {
	Transport manifest.Transport // its placeholders replaced: env, headers and url may hold secrets
	Missing   gate.Result        // what it requires and this host lacks
	Gated     bool               // Missing is not empty, and gating is skip: it is not started
	Stripped  []string           // names of the variables that a stdio child does not get, sorted
	Err       error              // why it cannot be started at all: a placeholder's file, a value that is no URL
}

// Check does everything for m, which is c's manifest or one of its members, that a Bridge does before it starts it,
// except to make its state directory. Of cfg it needs Settings, Version, Environ and Gate.
func Check(cfg Config, c discovery.Candidate, m *manifest.Manifest) (p Preflight) {
	b := New(nil, cfg)
	var unset []string
	if p.Transport, unset, p.Err = m.Resolve(manifest.Expander{Root: c.Root, AgentVersion: b.agentVersion()}); p.Err != nil {
		return p
	}
	p.Missing = b.cfg.Gate.Check(m.Requires, c.Root, unset)
	p.Gated = !p.Missing.OK() && b.config().GatingFor(m.Plugin.ID) == config.Skip
	if p.Transport.Type == manifest.Stdio {
		_, p.Stripped = gate.Env(b.cfg.Environ, gate.EnvOptions{Allow: m.Requires.Env, Add: p.Transport.Env})
	}
	return p
}

// Trial is how the start of a stdio extension went.
type Trial struct {
	Dialect  manifest.Dialect // ext or mcp; "" where there was no handshake
	Tools    []string         // their own names, in the extension's order
	Hooks    []string
	Problems []mesh.Diagnostic // what is odd about it and does not keep it from being run
	Stderr   []string          // its last lines, known secrets replaced; at most 20
	Exit     *child.ExitError  // how the process ended, if it did not wait to be told
	Err      error             // why it cannot be used
}

// maxTrialLines is how much stderr a Trial keeps.
const maxTrialLines = 20

// Examine starts m, a stdio extension, which is c's manifest or one of its members, as a Bridge with cfg would; shakes hands,
// asks for its tools and stops it. It returns when nothing of it is left. The handshake has the time that a
// Bridge gives it; ctx bounds the whole. Of cfg it needs what Check does, and StateDir.
func Examine(ctx context.Context, cfg Config, c discovery.Candidate, m *manifest.Manifest) Trial {
	b := New(nil, cfg)
	u, err := b.makeUnit(c, m)
	if err != nil {
		return Trial{Err: err}
	}
	t := &trial{unit: u, host: hostInfo{agentVersion: b.agentVersion()}}
	var lines ring
	spec := u.spec
	spec.Stderr = lines.add
	spec.Farewell = func(stdin *child.Stdin) {
		if !t.mcp.Load() {
			stdin.Write([]byte(`{"jsonrpc":"2.0","method":"shutdown"}` + "\n\n"))
		}
	}
	err = child.Run(ctx, spec, t.converse)
	t.reading.Wait()
	t.noise()
	if exit, ok := errors.AsType[*child.ExitError](err); ok && !exit.Stopped {
		t.out.Exit = exit
	}
	for _, l := range lines.last(maxTrialLines) {
		t.out.Stderr = append(t.out.Stderr, l.Text)
	}
	t.out.Err = t.verdict(err)
	return t.out
}

// trial is a life that ends with its handshake.
type trial struct {
	unit *unit
	host hostInfo
	out  Trial

	conn    *rpc.Conn
	reading sync.WaitGroup
	mcp     atomic.Bool
	gone    atomic.Bool // the connection has ended by itself
}

// verdict is child.Run's word without what is only about how we stopped the process.
func (t *trial) verdict(err error) error {
	if exit, ok := errors.AsType[*child.ExitError](err); ok && exit.Stopped && exit.Cause != nil {
		return exit.Cause
	}
	return err
}

// converse is slot.converse as far as the handshake, and then asks a native child for its tools, too: an MCP
// server has been asked already.
func (t *trial) converse(ctx context.Context, p *child.Process) error {
	id := t.unit.id()
	t.conn = rpc.NewConn(p.Stdout, p.Stdin, rpc.Options{
		MaxLine: t.unit.limits.maxLine,
		Gone: func(err error) *rpc.Error {
			t.gone.Store(true)
			return gone(ctx, id, err)
		},
	})
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Owned by Examine, which waits for it when the child has been stopped; ends with the child's output. To wait
	// for that here would be to wait for a child that waits for us.
	t.reading.Go(func() {
		err := t.conn.Run(context.WithoutCancel(ctx))
		stop(fmt.Errorf("the conversation ended: %w", cmp.Or(err, errClosedOutput)))
	})

	hs, err := t.shake(ctx, p.Terminate)
	if err != nil {
		return err
	}
	if hs, err = t.list(ctx, hs); err != nil {
		return err
	}
	t.out.Hooks, t.out.Problems = hs.hooks, hs.problems
	for _, tool := range hs.tools {
		t.out.Tools = append(t.out.Tools, tool.Own)
	}
	return nil
}

// noise tells of lines that are no messages; of a start that failed, they may be the reason.
func (t *trial) noise() {
	if t.conn == nil {
		return // the process did not even start
	}
	if n := t.conn.Stats().Noise; n > 0 {
		t.out.Problems = append(t.out.Problems, mesh.Diagnostic{Level: "warn", Code: "noise",
			Message: fmt.Sprintf("lines on standard output that are no messages: %d; they are skipped, and belong on standard error", n)})
	}
}

// shake shakes hands, within the time that the bridge gives.
func (t *trial) shake(ctx context.Context, terminate func()) (*handshake, error) {
	late := fmt.Errorf("it did not answer initialize within %s", t.unit.limits.handshake)
	hctx, cancel := context.WithTimeoutCause(ctx, t.unit.limits.handshake, late)
	defer cancel()
	hs, err := shakeHands(hctx, t.conn, t.unit, t.host)
	if err == nil {
		t.out.Dialect = hs.dialect
		t.mcp.Store(hs.dialect == manifest.MCP)
		return hs, nil
	}
	return nil, t.explain(hctx, terminate, err)
}

// list asks for the tools with tools/list, which a native extension need not have.
func (t *trial) list(ctx context.Context, hs *handshake) (*handshake, error) {
	if hs.dialect == manifest.MCP {
		return hs, nil
	}
	again, err := relist(ctx, t.conn, hs, t.unit)
	switch {
	case errors.Is(err, rpc.CodeMethodNotFound):
		return hs, nil
	case err != nil:
		return nil, t.explain(ctx, func() {}, err)
	case again.hash != hs.hash:
		hs.problems = append(hs.problems, mesh.Diagnostic{Level: "warn", Code: "tools_differ",
			Message: "tools/list does not answer the tools that initialize did; until they change, the latter count"})
	}
	return hs, nil
}

// explain says why a request came to nothing: where that is because something ended, what it was.
func (t *trial) explain(ctx context.Context, terminate func(), err error) error {
	deadline, bounded := ctx.Deadline()
	if t.gone.Load() || bounded && time.Until(deadline) <= 0 {
		<-ctx.Done() // we have been told of its end a moment before it was
	}
	if ctx.Err() == nil {
		return fmt.Errorf("handshake: %w", err)
	}
	terminate() // it does not listen, or is gone: politeness would only cost time
	return context.Cause(ctx)
}
