package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	state "github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// run is one run of an instance: one child process, or one HTTP session, from its start to its end.
type run struct {
	inst  *instance
	f     *forwarder
	start start
	end   func(why error)     // closes the connection and stops the child
	ready func(hs *handshake) // called after the handshake
	cut   chan struct{}       // closed answerGrace after the connection has ended

	retryPause time.Duration    // of retryIncomplete
	retry      *time.Timer      // of retryIncomplete; nil before it has run
	resumed    *json.RawMessage // the reopened session in which the server was subscribed to again
}

// runOnce is one run of the instance: from the start to the end of its process or session.
func (s *instance) runOnce(ctx context.Context, ready func()) error {
	s.notStartable.Store(false)
	if !s.apply(state.Begin, "") { // drained: start nothing until a restart ends ctx
		<-ctx.Done()
		return context.Cause(ctx)
	}
	switch s.workload.transport.Type {
	case manifest.Stdio:
		return s.runChild(ctx, ready)
	case manifest.HTTP:
		return s.runRemote(ctx, ready)
	}
	return s.runContainer(ctx, ready)
}

// runChild starts a child, performs the handshake, and serves calls until the process or ctx ends.
func (s *instance) runChild(ctx context.Context, ready func()) error {
	w, err := present(s) // before the turn, which reading files must not take up
	if err != nil {
		return err
	}
	release, err := s.awaitTurn(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.state(); err != nil {
		return err
	}
	spec := w.spec
	spec.Linger = s.workload.limits.drain
	spec.Stderr = s.handleStderr
	noise := new(noiseTail)
	spec.Output = func() []string { return noise.texts(w.redact) }
	var native atomic.Bool
	native.Store(s.workload.dialect == manifest.Ext)
	spec.BeforeStop = func(stdin *child.Stdin) {
		if native.Load() { // a notification and an empty line, for children that do not parse JSON
			stdin.Write([]byte(`{"jsonrpc":"2.0","method":"shutdown"}` + "\n\n"))
		}
	}
	// The connection stays open while the process is being stopped: responses that it still sends are delivered, and a
	// process could not exit while its output is not read.
	var conversation sync.WaitGroup
	err = child.Run(ctx, spec, func(ctx context.Context, p *child.Process) error {
		connCtx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		end := func(why error) {
			stop(why)
			if ctx.Err() == nil { // the child does not read or cannot respond, so a graceful stop would only delay the restart
				p.Terminate()
			}
		}
		r := &run{inst: s, f: s.newForwarder(), start: start{p.Activity, release}, end: end, cut: make(chan struct{}), ready: func(hs *handshake) {
			native.Store(hs.dialect == manifest.Ext)
			ready()
		}}
		r.f.noise = noise
		conn := r.connect(connCtx, p)
		conversation.Go(func() { // owned by runChild, which waits for it; ends with the process
			err := conn.Run(context.WithoutCancel(ctx))
			time.AfterFunc(answerGrace, func() { close(r.cut) })
			end(cmp.Or(err, errClosedOutput))
		})
		err := r.handshakeAndServe(connCtx)
		awaitRemainingOutput(ctx, &conversation)
		return cmp.Or(err, ownCause(connCtx, ctx))
	})
	conversation.Wait()
	s.reportDropped(s.keepLine)
	s.history.runEnded(exitOf(err), func(text string) string { return s.workload.clean(text, maxReason) })
	return err
}

// exitOf returns the exit of the process in the error of a run; nil if there is none.
func exitOf(err error) *child.ExitError {
	exit, _ := errors.AsType[*child.ExitError](err)
	if _, late := errors.AsType[*startTimeoutError](err); late && exit != nil { // all of its output is from the start
		exit.SetError()
	}
	return exit
}

// awaitRemainingOutput waits for the reader of a process that has exited, if ctx ended with it: child.Run closes the
// pipes when its callback returns, and output that is still in them must be read first. The reader ends promptly.
func awaitRemainingOutput(ctx context.Context, reader *sync.WaitGroup) {
	if _, ended := errors.AsType[*child.ExitError](context.Cause(ctx)); ended {
		reader.Wait()
	}
}

// ownCause returns the cause of connCtx's end, or nil if it only ended with parent.
func ownCause(connCtx, parent context.Context) error {
	if cause := context.Cause(connCtx); cause != context.Cause(parent) {
		return cause
	}
	return nil
}

// connect creates the connection with a child.
func (r *run) connect(connCtx context.Context, p *child.Process) *jsonrpc.Conn {
	conn := jsonrpc.NewConn(p.Stdout, &childStdin{p.Stdin, sync.OnceFunc(func() {
		// A process that has exited ends the connection itself. One that is running may have sent responses: read them first.
		time.AfterFunc(closedStdinGrace, func() { r.end(errClosedInput) })
	})}, jsonrpc.Options{
		MaxLine:        r.inst.workload.limits.maxLine,
		Reserve:        r.inst.memory.reserve,
		OnNotification: func(method string, params []byte) { r.handleNotification(method, params) },
		OnNoise:        func(line []byte, why error) { r.handleNoise(line, why) },
		Gone:           func(err error) *rpc.Error { return connectionEnded(connCtx, r.inst.workload.id(), err) },
	})
	r.f.conn = conn
	r.inst.history.processStarted(p, conn.Stats)
	return conn
}

// closedStdinGrace is how long a child that has closed its standard input may continue to respond.
const closedStdinGrace = time.Second

// childStdin is a child's standard input that calls closed when a write fails.
type childStdin struct {
	*child.Stdin
	closed func()
}

func (l *childStdin) Write(p []byte) (int, error) {
	n, err := l.Stdin.Write(p)
	if err != nil {
		l.closed()
	}
	return n, err
}

// TryWrite implements jsonrpc.Conn's optional interface for writes that do not block.
func (l *childStdin) TryWrite(p []byte) (int, error) {
	n, err := l.Stdin.TryWrite(p)
	if err != nil {
		l.closed()
	}
	return n, err
}

// handshakeAndServe performs the handshake and serves calls. It returns when ctx, the connection's context, has ended
// and the calls in flight are answered.
func (r *run) handshakeAndServe(ctx context.Context) error {
	if err := r.becomeReady(ctx); err != nil {
		return err
	}
	r.retryIncomplete(false, 0)
	defer r.f.relist.start(ctx, r.relist)()
	defer r.startHealthCheck(ctx)()
	return r.serve(ctx)
}

// becomeReady performs the handshake and announces its result.
func (r *run) becomeReady(ctx context.Context) error {
	hs, err := r.handshakeInTime(ctx)
	if err != nil {
		return err
	}
	r.inst.breaker.Close()
	r.applyHandshake(hs)
	r.inst.updates.resume(r.f.conn)
	r.ready(hs)
	return nil
}

// handshakeInTime performs the handshake, for as long as the start may take.
func (r *run) handshakeInTime(ctx context.Context) (*handshake, error) {
	defer r.start.release()
	handshakeCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	recorder := &stepRecorder{peer: r.f.conn}
	stop := r.watchStart(ctx, recorder, func(why error) { cancel(&startTimeoutError{why}) })
	defer stop()
	hs, err := exchangeHandshake(handshakeCtx, recorder, r.inst.workload, r.inst.agent, r.inst.history.lastListings())
	if err == nil {
		return hs, nil
	}
	if kind := rpc.AsError(err).Details().Kind; kind == rpc.CodeExited.Kind() && r.inst.workload.transport.Type == manifest.Stdio {
		select {
		case <-handshakeCtx.Done(): // the connection has ended, and the context's cause has a better error
		case <-time.After(time.Second): // it has not: the extension sent an error that looks like that
		}
	}
	timeout, late := errors.AsType[*startTimeoutError](context.Cause(handshakeCtx))
	switch {
	case contextError(ctx) != nil:
		return nil, context.Cause(ctx)
	case late:
		err := &startTimeoutError{r.f.withNoise(timeout.error)}
		r.end(err)
		return nil, err
	case handshakeCtx.Err() != nil:
		return nil, r.f.withNoise(context.Cause(handshakeCtx))
	}
	return nil, r.f.withNoise(fmt.Errorf("handshake: %w", err))
}

// startTimeoutError is the cause of the end of a handshake that takes too long.
type startTimeoutError struct{ error }

// stepRecorder records the last request of a handshake.
type stepRecorder struct {
	peer
	last atomic.Pointer[string]
}

func (s *stepRecorder) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	s.last.Store(&method)
	return s.peer.Call(ctx, method, params)
}

// current returns the last request.
func (s *stepRecorder) current() string {
	if last := s.last.Load(); last != nil {
		return *last
	}
	return "initialize"
}

// withNoise adds to err the first line of the child's output that was not a message, which may explain why the handshake
// failed.
func (f *forwarder) withNoise(err error) error {
	if line := f.firstNoise.Load(); line != nil {
		return fmt.Errorf("%w; its first line on standard output, %q, is not a message", err, *line)
	}
	return err
}

// contextError returns ctx.Err(). If ctx's deadline has passed but its timer has not fired yet, it waits for ctx: the
// timer of a call with the same deadline may fire first.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err()
}

// applyHandshake uses the result of a handshake from now on, and announces it.
func (r *run) applyHandshake(hs *handshake) {
	before := r.f.handshake.Swap(hs)
	r.inst.history.handshakeSucceeded(hs)
	if r.inst.keepTools != nil {
		r.inst.keepTools(hs.names)
	}
	if before == nil || !slices.Equal(before.problems, hs.problems) { // tools may be read many times
		for _, d := range hs.problems {
			r.inst.log.Warn("handshake", "code", d.Code, "problem", d.Message)
		}
	}
	r.inst.mesh.Update(func(a *wire.Announce) {
		a.HandshakeHash, a.Dialect = hs.hash, string(hs.dialect)
	})
}

// answerGrace is how long callers may still receive large answers of a child or a session that has ended. The next one starts
// after that.
const answerGrace = 2 * time.Second

// serve answers calls until ctx ends.
func (r *run) serve(ctx context.Context) error {
	dialect, tools := r.f.handshake.Load().dialect, len(r.f.handshake.Load().tools)
	// Calls in flight end with the child or the connection, so the stop decides how long they may take; only large answers
	// that callers are receiving do not. A drain requested by an operator waits for the longest possible call.
	return r.inst.serveHandler(ctx, r.f, serve.Options{
		CallTimeout: r.inst.workload.limits.call, MaxCallTimeout: r.inst.workload.limits.maxCall,
		MaxInflight: r.inst.workload.limits.maxInflight, DrainTimeout: r.inst.workload.limits.maxCall,
		Cut:     r.cut,
		OnReady: func() { r.inst.log.Info("extension ready", "dialect", dialect, "tools", tools) },
	})
}

// serveHandler serves calls with h until ctx ends. After an operator requested a drain, it accepts no calls, but
// still returns only when ctx ends.
func (s *instance) serveHandler(ctx context.Context, h rpc.Handler, opt serve.Options) error {
	serveCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	retired, idle := make(chan struct{}), make(chan struct{})
	retire, complete := sync.OnceFunc(func() { close(retired) }), sync.OnceFunc(func() { close(idle) })
	defer retire()
	defer complete()
	s.history.setServing(serving{end, retired, idle})
	if s.mesh.Status().Drained() { // drained before serving began
		retire()
		complete()
		<-ctx.Done()
		return nil
	}
	// Report the instance as restarting as soon as serving ends, even if Serve is about to report ready. The end of the
	// process, which the supervisor reports, may take longer.
	reported := make(chan struct{})
	stopReport := context.AfterFunc(serveCtx, func() {
		defer close(reported)
		s.servingEnded(context.Cause(serveCtx))
	})
	defer func() {
		if !stopReport() {
			<-reported
		}
	}()
	if f, ok := h.(*forwarder); ok {
		s.workload.replicaSet.add(f)
		defer context.AfterFunc(serveCtx, func() { s.workload.replicaSet.remove(f) })()
		defer s.workload.replicaSet.remove(f)
	}
	opt.OnRetired = retire
	err := s.mesh.Serve(serveCtx, h, opt)
	complete()
	if err == nil {
		<-ctx.Done()
	}
	return err
}

func (s *instance) newForwarder() *forwarder {
	return &forwarder{
		breaker: s.breaker, passthrough: s.workload.announce.Context.Passthrough, limits: s.workload.limits,
		relist: newSignal(), check: dueSignal{signal: newSignal()}, replicas: s.workload.replicaSet, memory: s.memory,
		updates: s.updates,
	}
}

// closedOutputError reports that a child closed its standard output. It wraps io.EOF, which child.Run replaces by the
// exit of the process if that follows.
type closedOutputError struct{}

func (closedOutputError) Error() string { return "it closed its standard output and kept running" }
func (closedOutputError) Unwrap() error { return io.EOF }

var (
	errClosedOutput error = closedOutputError{}
	errClosedInput        = errors.New("it closed its standard input and kept running")
)

// connectionEnded returns the error of the calls in flight when the connection has ended. ctx has the cause.
func connectionEnded(ctx context.Context, id string, err error) *rpc.Error {
	cause := context.Cause(ctx)
	if exit, ok := cause.(*child.ExitError); ok {
		// The message has no stderr, which may contain anything: operators see it in the status and the logs.
		return rpc.NewError(rpc.CodeExited, rpc.Details{Status: exit.Status()},
			"%s ended with the call in flight: %s", id, exit.Status())
	}
	switch {
	case errors.Is(cause, context.Canceled):
		cause = errors.New("its bridge is stopping")
	case cause == nil && errors.Is(err, io.EOF):
		cause = errClosedOutput
	case cause == nil:
		cause = err
	}
	return rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s was stopped with the call in flight: %s", id, plainErrorText(cause.Error()))
}
