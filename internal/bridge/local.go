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
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Local is a bridge's work on its host without a mesh and one step at a time, for extctl's local verbs: what they
// find is what a Bridge with the same Config would. It may be used by several goroutines.
type Local struct{ b *Bridge }

// NewLocal makes a Local. Of cfg it needs Settings, Version, Environ and Gate, and StateDir for Examine.
func NewLocal(cfg Config) Local { return Local{New(nil, cfg)} }

// Scan finds the extensions of this host.
func (l Local) Scan(ctx context.Context) discovery.Report { return l.b.scan(ctx) }

// ManifestOptions are what manifests are held to.
func (l Local) ManifestOptions() manifest.Options {
	return manifest.Options{AgentVersion: l.b.agentVersion(), ReservedIDs: l.b.config().ReservedIDs}
}

// Preflight is what can be said of an extension, or of a member of one, before it is started.
type Preflight struct {
	Transport manifest.Transport // its placeholders replaced, unless Missing.Refused: env, headers and url may hold secrets
	Missing   gate.Result        // what it requires and this host lacks or refuses
	Gated     bool               // it is not started because of Missing
	Stripped  []string           // names of the variables that a stdio child does not get, sorted
	Err       error              // why it cannot be started at all: a placeholder's file, a value that is no URL
}

// Check does everything for m, which is c's manifest or one of its members, that a Bridge does before it starts it,
// except to make its state directory.
func (l Local) Check(c discovery.Candidate, m *manifest.Manifest) (p Preflight) {
	b := l.b
	p.Missing = b.check(m, c.Root)
	p.Gated = b.gates(m, p.Missing)
	p.Transport = m.Transport
	if !p.Missing.Refused() {
		if p.Transport, p.Err = b.resolve(m, c.Root); p.Err != nil {
			return p
		}
	}
	if p.Transport.Type == manifest.Stdio {
		_, p.Stripped = gate.Env(b.cfg.Environ, b.envOptions(m, p.Transport))
	}
	return p
}

// Trial is how the start of a stdio extension went. Known secrets are replaced in all of it.
type Trial struct {
	Dialect  manifest.Dialect // ext or mcp; "" where there was no handshake
	Tools    []string         // their own names, in the extension's order
	Hooks    []string
	Problems []mesh.Diagnostic // what is odd about it and does not keep it from being run
	Stderr   []string          // its last lines, at most 20
	Exit     *child.ExitError  // how the process ended, if it did not wait to be told
	Err      error             // why it cannot be used
}

// maxTrialLines is how much stderr a Trial keeps.
const maxTrialLines = 20

// Examine starts m, a stdio extension, which is c's manifest or one of its members, as a Bridge would; shakes hands, asks
// for its tools and stops it. It returns when nothing of it is left. The handshake has the time that a Bridge gives
// it; ctx bounds the whole.
func (l Local) Examine(ctx context.Context, c discovery.Candidate, m *manifest.Manifest) Trial {
	b := l.b
	w, err := b.newWorkload(c, m)
	if err == nil && w.missing.Refused() {
		err = errors.New(w.missing.String())
	}
	if err != nil {
		return Trial{Err: err}
	}
	t := &trial{inst: instance{workload: w, host: hostInfo{agentVersion: b.agentVersion()}}}
	var lines ring
	spec := w.spec
	spec.Stderr = lines.add
	spec.Farewell = func(stdin *child.Stdin) {
		if !t.mcp.Load() { // as in childLife; one that never shook hands may be either
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

// trial is a life that ends with its handshake, in a slot that is on no mesh.
type trial struct {
	inst instance // of which only unit and host are set: all that a handshake needs
	out  Trial

	conn    *rpc.Conn
	reading sync.WaitGroup
	ended   atomic.Bool // the connection
	mcp     atomic.Bool
}

// live is childLife's use of the process, as far as the handshake; a native child is then asked for its tools, too.
// An MCP server has been asked already.
func (t *trial) exchangeHandshake(ctx context.Context, p *child.Process) error {
	connCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	end := func(why error) {
		stop(why)
		if ctx.Err() == nil {
			p.Terminate()
		}
	}
	t.conn = rpc.NewConn(p.Stdout, p.Stdin, rpc.Options{
		MaxLine: t.inst.workload.limits.maxLine,
		Gone: func(err error) *rpc.Error {
			t.ended.Store(true)
			return connectionEnded(connCtx, t.inst.workload.id(), err)
		},
	})
	// Owned by Examine, which waits for it when the child has been stopped; ends with the child's output.
	t.reading.Go(func() {
		err := t.conn.Run(context.WithoutCancel(ctx))
		if connCtx.Err() == nil {
			end(cmp.Or[error](err, errClosedOutput))
		}
	})
	defer awaitRemainingOutput(ctx, &t.reading)
	hs, err := t.inst.handshakeInTime(connCtx, &forwarder{conn: t.conn}, end)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the caller's time, and not the handshake's
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

// list asks for the tools with tools/list, which a native extension need not have.
func (t *trial) checkToolsList(ctx context.Context, hs *handshake) error {
	listed, err := readTools(ctx, t.conn, hs, t.inst.workload)
	switch {
	case err == nil && listed.hash != hs.hash:
		t.problem("tools_differ", "tools/list does not answer the tools that initialize did; until they change, the latter count")
		return nil
	case err == nil, errors.Is(err, rpc.CodeMethodNotFound):
		return nil
	case t.ended.Load():
		<-ctx.Done() // the connection's end, which says it better, is about to be the cause
	}
	if contextError(ctx) != nil {
		return context.Cause(ctx)
	}
	return err
}

// noise tells of lines that are no messages; of a start that failed, they may be the reason.
func (t *trial) reportNoise() {
	if t.conn == nil {
		return // the process did not even start
	}
	if n := t.conn.Stats().Noise; n > 0 {
		t.problem("noise", "lines on standard output that are no messages: %d; they are skipped, and belong on standard error", n)
	}
}

func (t *trial) problem(code, format string, args ...any) {
	t.out.Problems = append(t.out.Problems, mesh.Diagnostic{Level: "warn", Code: code, Message: fmt.Sprintf(format, args...)})
}

// judge makes child.Run's word the trial's: without how we stopped the process, and without secrets.
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
