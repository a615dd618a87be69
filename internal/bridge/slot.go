package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// slot is one replica of a unit: its place on the mesh, and the lives of the child in it.
type slot struct {
	unit    *unit
	host    hostInfo
	mesh    *mesh.Slot
	log     *slog.Logger
	breaker *breaker.Breaker
	sup     *supervise.Supervisor
	lines   *ring // the last lines of stderr
	noisy   bucket
	toMesh  func(line string)
	events  func(notification []byte) error

	mu       sync.Mutex
	failure  string // the handshake failure that was last said aloud
	lastExit *child.ExitError
	endServe context.CancelCauseFunc // of the ready life
}

// hostInfo is what children are told about us.
type hostInfo struct {
	agentVersion string
}

// run keeps the slot on the mesh and its child alive until ctx ends. It returns when the child is gone.
func (s *slot) run(ctx context.Context) error {
	// The good-bye comes after the child's end, so that the mesh sees draining first: the slot's own time on
	// the mesh ends when supervision has.
	onMesh, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var left error
	wg.Go(func() { left = s.mesh.Run(onMesh) }) // owned here; ends when supervision has
	stop := context.AfterFunc(ctx, func() { s.mesh.SetState(heartbeat.Draining, "stopping") })
	defer stop()
	if s.unit.gated != "" {
		s.mesh.SetState(heartbeat.Gated, s.unit.gated)
		<-ctx.Done()
	} else if err := s.sup.Run(ctx); ctx.Err() == nil {
		left = err
	}
	leave(context.Cause(ctx))
	wg.Wait()
	return left
}

// restart begins a new life now, out of whatever state.
func (s *slot) restart() { s.sup.Restart() }

// transition tells the mesh what supervision decided.
func (s *slot) transition(e supervise.Event) {
	switch e.Kind {
	case supervise.Starting:
		if e.Life == 1 {
			s.mesh.SetState(heartbeat.Spawning, "")
			return
		}
		s.mesh.SetRestarts(uint64(e.Life - 1))
		s.mesh.SetState(heartbeat.Restarting, reasonOf(e.Err))
	case supervise.Restarting:
		s.mesh.SetState(heartbeat.Restarting, reasonOf(e.Err))
		s.say(e, fmt.Sprintf("restarting in %s", e.Delay.Round(time.Millisecond)))
	case supervise.Failed:
		reason := fmt.Sprintf("gave up after %d restarts: %s", e.Restarts, reasonOf(e.Err))
		s.mesh.SetState(heartbeat.Failed, reason)
		s.log.Error("extension failed", "restarts", e.Restarts, "error", reasonOf(e.Err), "retry_in", e.Delay)
	}
}

// say logs the end of a life. A handshake that fails is an error once, however often it is tried again.
func (s *slot) say(e supervise.Event, what string) {
	if errors.Is(e.Err, supervise.ErrRestart) {
		s.log.Info("extension restarts", "reason", "asked to")
		return
	}
	level := slog.LevelWarn
	if !e.Ready {
		level = slog.LevelError
		s.mu.Lock()
		if s.failure != "" {
			level = slog.LevelDebug
		}
		s.failure = reasonOf(e.Err)
		s.mu.Unlock()
	}
	msg := "extension ended"
	if !e.Ready {
		msg = "extension did not start"
	}
	s.log.Log(context.TODO(), level, msg, "error", reasonOf(e.Err), "next", what)
}

func reasonOf(err error) string {
	if err == nil {
		return "it ended by itself"
	}
	return err.Error()
}

// life is one life of the child: spawn, shake hands, serve until the process or ctx ends.
func (s *slot) life(ctx context.Context, ready func()) error {
	spec := s.unit.spec
	spec.Linger = s.unit.limits.drain
	spec.Stderr = s.stderr
	var native atomic.Bool
	native.Store(s.unit.dialect == manifest.Ext)
	spec.Farewell = func(stdin *child.Stdin) {
		if native.Load() { // a notification, and the empty line that says the same to the simplest of children
			stdin.Write([]byte(`{"jsonrpc":"2.0","method":"shutdown"}` + "\n\n"))
		}
	}
	err := child.Run(ctx, spec, func(ctx context.Context, p *child.Process) error {
		f := s.forwarder()
		f.conn = rpc.NewConn(p.Stdout, p.Stdin, rpc.Options{
			MaxLine:        s.unit.limits.maxLine,
			OnNotification: func(method string, params []byte) { s.notification(f, method, params) },
			OnNoise:        s.noise,
			Gone:           func(err error) *rpc.Error { return gone(ctx, s.unit.id(), err) },
		})
		return s.converse(ctx, f, p.Terminate, func(hs *handshake) {
			native.Store(hs.dialect == manifest.Ext)
			ready()
		})
	})
	if exit, ok := errors.AsType[*child.ExitError](err); ok {
		s.mu.Lock()
		s.lastExit = exit
		s.mu.Unlock()
	}
	return err
}

// converse runs f's connection, shakes hands and serves calls. It returns when the child is gone or closed
// its output, or when ctx has ended and what was in flight is answered.
// terminate ends the other side at once, without politeness.
func (s *slot) converse(ctx context.Context, f *forwarder, terminate func(), ready func(*handshake)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The connection outlives ctx, whose end only says that the stop begins: what is in flight then is still
	// to be answered.
	cctx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { // owned here; ends with the child's output, or when this func returns
		err := f.conn.Run(cctx)
		stop(fmt.Errorf("the conversation ended: %w", cmp.Or(err, errClosedOutput)))
	})
	defer wg.Wait()
	defer hangUp()

	hs, err := s.shake(ctx, f, terminate)
	if err != nil {
		return err
	}
	s.breaker.Close()
	s.mu.Lock()
	s.failure = ""
	s.mu.Unlock()
	s.learn(f, hs)
	ready(hs)
	s.log.Info("extension ready", "dialect", hs.dialect, "tools", len(hs.tools))
	wg.Go(func() { s.followTools(ctx, f) }) // owned here; ends with ctx
	wg.Go(func() {                          // owned here; ends with ctx
		if err := s.watchForHang(ctx, f); err != nil {
			stop(err)
			terminate()
		}
	})
	defer stop(nil)
	return s.serve(ctx, f)
}

// learn takes over what the child said of itself, and announces it.
func (s *slot) learn(f *forwarder, hs *handshake) {
	f.shaken.Store(hs)
	for _, d := range hs.problems {
		s.log.Warn("handshake", "code", d.Code, "problem", d.Message)
	}
	s.mesh.Update(func(a *mesh.Announce) {
		a.HandshakeHash, a.Dialect = hs.hash, string(hs.dialect)
	})
}

// followTools reads the tools again whenever the child says that they have changed.
func (s *slot) followTools(ctx context.Context, f *forwarder) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.listChanged:
		}
		hs, err := relist(ctx, f.conn, f.shaken.Load(), s.unit)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("the tools could not be read again; the old ones stay", "error", err)
			}
			continue
		}
		s.learn(f, hs)
	}
}

// serve answers calls until ctx ends. Where an operator has asked for a drain it stops taking them, and keeps
// the child until ctx ends all the same.
func (s *slot) serve(ctx context.Context, f *forwarder) error {
	sctx, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	s.mu.Lock()
	s.endServe = drain
	s.mu.Unlock()
	// How long a stop waits for calls in flight is the child's Linger: when that has passed the child is
	// stopped, and they end with it. An operator's drain waits for the longest call there can be.
	err := s.mesh.Serve(sctx, f, mesh.ServeOptions{
		CallTimeout: s.unit.limits.call, MaxCallTimeout: s.unit.limits.maxCall,
		MaxInflight: s.unit.limits.maxInflight, DrainTimeout: s.unit.limits.maxCall,
	})
	if err == nil && ctx.Err() == nil {
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); err == nil && (errors.Is(cause, errClosedOutput) || errors.Is(cause, errHung)) {
		return cause
	}
	return err
}

func (s *slot) forwarder() *forwarder {
	return &forwarder{
		breaker: s.breaker, passthrough: s.unit.announce.Context.Passthrough,
		listChanged: make(chan struct{}, 1), overdue: make(chan struct{}, 1),
	}
}

var errHung = errors.New("it hangs")

// watchForHang returns an error when the other side hangs: a call is past its deadline, and since then
// nothing came, not even the answer to a ping. Any byte is a sign of life.
func (s *slot) watchForHang(ctx context.Context, f *forwarder) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.overdue:
		}
		timeout := s.unit.limits.hang
		conn, ok := f.conn.(*rpc.Conn)
		if timeout <= 0 || !ok {
			continue
		}
		before := conn.Received()
		pctx, cancel := context.WithTimeout(ctx, timeout)
		_, err := conn.Call(pctx, "ping", nil)
		cancel()
		if errors.Is(err, rpc.CodeTimeout) && conn.Received() == before && ctx.Err() == nil {
			return fmt.Errorf("%w: a call is overdue, and for %s it neither answered a ping nor said anything", errHung, timeout)
		}
	}
}

var errDrain = errors.New("asked to drain")

// drain lets what is in flight finish and takes nothing new, until the next life.
func (s *slot) drain() {
	s.mesh.SetState(heartbeat.Draining, errDrain.Error())
	s.mu.Lock()
	end := s.endServe
	s.mu.Unlock()
	if end != nil {
		end(errDrain)
	}
}

var errClosedOutput = errors.New("it closed its standard output")

// shake shakes hands, within the unit's time.
func (s *slot) shake(ctx context.Context, f *forwarder, terminate func()) (*handshake, error) {
	late := fmt.Errorf("it did not answer initialize within %s", s.unit.limits.handshake)
	hctx, cancel := context.WithTimeoutCause(ctx, s.unit.limits.handshake, late)
	defer cancel()
	hs, err := shakeHands(hctx, f.conn, s.unit, s.host)
	if err == nil {
		return hs, nil
	}
	if context.Cause(hctx) == late {
		terminate() // it does not listen: politeness would only cost time
		return nil, late
	}
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Code == rpc.CodeExited {
		return nil, context.Cause(ctx) // the end itself says it better
	}
	return nil, fmt.Errorf("handshake: %w", err)
}

// gone is what calls in flight are told when the child has ended.
func gone(ctx context.Context, id string, err error) *rpc.Error {
	exit, ok := context.Cause(ctx).(*child.ExitError)
	if !ok {
		return rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s ended the conversation with the call in flight: %v", id, err)
	}
	return rpc.NewError(rpc.CodeExited, rpc.Details{Status: exit.Status(), StderrTail: exit.StderrTail},
		"%s ended with the call in flight: %s", id, exit.Status())
}

// stderr takes one line of the child's.
func (s *slot) stderr(line string) {
	s.lines.add(line)
	s.log.Info(line, "stream", "stderr")
	if s.toMesh != nil {
		s.toMesh(line)
	}
}

// noise takes a line of the child's output that is no message.
func (s *slot) noise(line []byte, why error) {
	if !s.noisy.allow(time.Now()) {
		return
	}
	s.log.Warn("noise on standard output", "line", string(line[:min(len(line), 200)]), "why", why)
}

// notification passes progress on to whoever asked for it, and publishes everything else as an event of the
// extension.
func (s *slot) notification(f *forwarder, method string, params []byte) {
	switch method {
	case "notifications/progress":
		if f.progress.deliver(params) {
			return
		}
	case "notifications/tools/list_changed":
		f.relist()
	}
	if err := s.events(rpc.AppendRequest(nil, nil, method, params)); err != nil {
		s.log.Debug("an event was not published", "method", method, "error", err)
	}
}
