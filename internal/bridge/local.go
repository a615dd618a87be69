package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Local performs single steps of a Bridge on this host, without a connection to NATS, for extctl's local commands. The
// results equal those of a Bridge with the same Config. It is safe for concurrent use.
type Local struct{ planner *planner }

// NewLocal returns a Local. It uses Settings, Version, Environ and Gate of cfg, and StateDir for Examine.
func NewLocal(cfg Config) Local { return Local{newPlanner(cfg.withDefaults())} }

// Scan finds the extensions on this host.
func (l Local) Scan(ctx context.Context) discovery.Report { return l.planner.scan(ctx) }

// ManifestOptions returns the options with which manifests are parsed.
func (l Local) ManifestOptions() manifest.Options {
	return manifest.Options{AgentVersion: l.planner.agentVersion(), ReservedIDs: l.planner.config().ReservedIDs}
}

// Preflight is the result of checking an extension, or one of its members, before it is started.
type Preflight struct {
	Transport manifest.Transport // with placeholders replaced, unless Missing.Refused; env, headers and url may contain secrets
	Missing   gate.Result        // requirements that this host lacks or refuses
	Gated     bool               // not started because of Missing
	Stripped  []string           // sorted names of the variables withheld from a stdio child
	Err       error              // why it cannot be started, for example an unreadable placeholder file or an invalid URL
}

// Check performs all checks that a Bridge makes before it starts m, which is c's manifest or one of its members. It
// does not create the state directory.
func (l Local) Check(c discovery.Candidate, m *manifest.Manifest) (p Preflight) {
	pl := l.planner
	p.Missing = pl.check(m, c.Root)
	p.Gated = pl.gates(m, p.Missing)
	p.Transport = m.Transport
	if !p.Missing.Refused() {
		if p.Transport, p.Err = pl.resolve(m, c.Root); p.Err != nil {
			return p
		}
	}
	if p.Transport.Type == manifest.Stdio {
		_, p.Stripped = gate.Env(pl.cfg.Environ, pl.envOptions(m, p.Transport))
	}
	return p
}

// Trial is the result of a test start of a stdio extension. Known secrets are replaced in all of its texts.
type Trial struct {
	Dialect  manifest.Dialect // ext or mcp; "" if there was no handshake
	Tools    []string         // local names, in the extension's order
	Hooks    []string
	Problems []wire.Diagnostic // warnings that do not prevent it from running
	Stderr   []string          // the last lines, at most 20
	Exit     *child.ExitError  // how the process ended, if it ended on its own
	Err      error             // why it cannot be used
}

// maxTrialLines is how many lines of stderr a Trial keeps.
const maxTrialLines = 20

// Examine starts m, a stdio extension that is c's manifest or one of its members, as a Bridge would, performs the
// handshake, lists its tools and stops it. It returns when the process has ended. The start has the same time limits as
// in a Bridge; ctx limits the whole. Callers run at most MaxStarts of them at once, as a Bridge does.
func (l Local) Examine(ctx context.Context, c discovery.Candidate, m *manifest.Manifest) Trial {
	pl := l.planner
	w, err := pl.newWorkload(c, m)
	if err == nil && w.missing.Refused() {
		err = errors.New(w.missing.String())
	}
	if err == nil && w.transport.Type == manifest.Stdio {
		err = pl.makeStateDir(w.id())
	}
	if err != nil {
		return Trial{Err: err}
	}
	t := &trial{inst: instance{workload: w, agent: pl.agentVersion()}}
	var lines ring
	spec := w.spec
	spec.Stderr = func(line string) { lines.add(Line{Text: line}) }
	spec.Output = func() []string { return t.noise.texts(w.redact) }
	spec.BeforeStop = func(stdin *child.Stdin) {
		if !t.mcp.Load() { // as in runChild; without a handshake the dialect is unknown, so it gets the message too
			stdin.Write([]byte(`{"jsonrpc":"2.0","method":"shutdown"}` + "\n\n"))
		}
	}
	err = child.Run(ctx, spec, t.exchangeHandshake)
	t.reading.Wait()
	for _, l := range lines.last(maxTrialLines) {
		t.out.Stderr = append(t.out.Stderr, l.Text)
	}
	t.reportNoise()
	t.setOutcome(err)
	return t.out
}

// trial is a run that ends after its handshake, for an instance that is not on a mesh.
type trial struct {
	inst instance // only workload and host are set, which is all that a handshake needs
	out  Trial

	noise   noiseTail
	conn    *jsonrpc.Conn
	reading sync.WaitGroup
	ended   atomic.Bool // the connection has ended
	mcp     atomic.Bool
}

// exchangeHandshake uses the process as runChild does, up to the handshake. A native child is then also sent tools/list,
// which is part of an MCP server's handshake.
func (t *trial) exchangeHandshake(ctx context.Context, p *child.Process) error {
	connCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	end := func(why error) {
		stop(why)
		if ctx.Err() == nil {
			p.Terminate()
		}
	}
	t.conn = jsonrpc.NewConn(p.Stdout, p.Stdin, jsonrpc.Options{
		MaxLine: t.inst.workload.limits.maxLine,
		OnNoise: func(line []byte, _ error) { t.noise.add(line) },
		Gone: func(err error) *rpc.Error {
			t.ended.Store(true)
			return connectionEnded(connCtx, t.inst.workload.id(), err)
		},
	})
	// Owned by Examine, which waits for it after the child was stopped; ends with the child's output.
	t.reading.Go(func() {
		err := t.conn.Run(context.WithoutCancel(ctx))
		if connCtx.Err() == nil {
			end(cmp.Or[error](err, errClosedOutput))
		}
	})
	defer awaitRemainingOutput(ctx, &t.reading)
	hs, err := (&run{inst: &t.inst, f: &forwarder{conn: t.conn}, start: start{p.Activity, func() {}}, end: end}).handshakeInTime(connCtx)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the caller's deadline, not the handshake timeout
			p.Terminate()
		}
		return err
	}
	t.mcp.Store(hs.dialect == manifest.MCP)
	t.out.Dialect, t.out.Hooks, t.out.Problems = hs.dialect, hs.hooks, hs.problems
	for _, tool := range hs.tools {
		t.out.Tools = append(t.out.Tools, tool.Own)
	}
	if hs.dialect == manifest.MCP {
		return nil
	}
	return t.checkToolsList(connCtx, hs)
}

// checkToolsList sends tools/list, which a native extension may leave unimplemented.
func (t *trial) checkToolsList(ctx context.Context, hs *handshake) error {
	listed, err := readTools(ctx, t.conn, hs, t.inst.workload, false)
	switch {
	case err == nil && listed.hash != hs.hash:
		t.problem("tools_differ", "tools/list returns different tools than initialize; those of initialize are used until the extension announces a change")
		return nil
	case err == nil, errors.Is(err, rpc.CodeMethodNotFound):
		return nil
	case t.ended.Load():
		<-ctx.Done() // the connection is closing, and the context's cause will have a better error
	}
	if contextError(ctx) != nil {
		return context.Cause(ctx)
	}
	return err
}

// reportNoise reports lines that are not messages. If the start failed, they may explain why.
func (t *trial) reportNoise() {
	if t.conn == nil {
		return // the process did not start
	}
	if n := t.conn.Stats().Noise; n > 0 {
		t.problem("noise", "skipped lines on standard output that are not JSON-RPC messages: %d; write such output to standard error", n)
	}
}

func (t *trial) problem(code, format string, args ...any) {
	t.out.Problems = append(t.out.Problems, wire.Diagnostic{Level: "warn", Code: code, Message: fmt.Sprintf(format, args...)})
}

// setOutcome sets the trial's result from the error of child.Run: without the exit that we caused, and without secrets.
func (t *trial) setOutcome(err error) {
	if exit, ok := errors.AsType[*child.ExitError](err); ok {
		if !exit.Stopped {
			t.out.Exit = exit
		} else if exit.Cause != nil {
			err = exit.Cause
		}
	}
	if err != nil {
		t.out.Err = errors.New(t.inst.workload.clean(err.Error(), maxReason))
	}
}
