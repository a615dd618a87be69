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

	"github.com/extmesh/extmesh/internal/aside"
	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// life is one life of the slot: from the start to the end of whatever runs in it.
func (s *instance) runOnce(ctx context.Context, ready func()) error {
	if s.history.beginRun() { // nothing is to be taken: nothing is started
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

// childLife is the life of a child: spawn, shake hands, serve until the process or ctx ends.
func (s *instance) runChild(ctx context.Context, ready func()) error {
	spec := s.workload.spec
	spec.Linger = s.workload.limits.drain
	spec.Stderr = s.handleStderr
	var native atomic.Bool
	native.Store(s.workload.dialect == manifest.Ext)
	spec.Farewell = func(stdin *child.Stdin) {
		if native.Load() { // a notification, and the empty line that says the same to the simplest of children
			stdin.Write([]byte(`{"jsonrpc":"2.0","method":"shutdown"}` + "\n\n"))
		}
	}
	// The conversation goes on while the process is being stopped: what it still answers counts, and one whose
	// output nobody reads could not end by itself.
	var conversation sync.WaitGroup
	err := child.Run(ctx, spec, func(ctx context.Context, p *child.Process) error {
		connCtx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		end := func(why error) {
			stop(why)
			if ctx.Err() == nil { // it does not listen, or cannot answer: politeness would only cost time
				p.Terminate()
			}
		}
		f := s.newForwarder()
		conn := s.connect(connCtx, f, p, end)
		conversation.Go(func() { // owned by childLife, which waits; ends with the process
			err := conn.Run(context.WithoutCancel(ctx))
			end(cmp.Or(err, errClosedOutput))
		})
		err := s.handshakeAndServe(connCtx, f, end, func(hs *handshake) {
			native.Store(hs.dialect == manifest.Ext)
			ready()
		})
		awaitRemainingOutput(ctx, &conversation)
		return cmp.Or(err, ownCause(connCtx, ctx))
	})
	conversation.Wait()
	exit, _ := errors.AsType[*child.ExitError](err)
	s.history.runEnded(exit, func(text string) string { return s.workload.clean(text, maxReason) })
	return err
}

// awaitLastWords waits for the reader of a process that has ended, of which ctx is the life: child.Run closes the
// pipes when its use returns, and what lies in them still counts. The reader is at their end in a moment.
func awaitRemainingOutput(ctx context.Context, reader *sync.WaitGroup) {
	if _, ended := errors.AsType[*child.ExitError](context.Cause(ctx)); ended {
		reader.Wait()
	}
}

// ownCause is why talk was ended, or nil if it only ended with parent.
func ownCause(connCtx, parent context.Context) error {
	if cause := context.Cause(connCtx); cause != context.Cause(parent) {
		return cause
	}
	return nil
}

// connect makes the connection with a child.
func (s *instance) connect(connCtx context.Context, f *forwarder, p *child.Process, end func(error)) *rpc.Conn {
	conn := rpc.NewConn(p.Stdout, &childStdin{p.Stdin, sync.OnceFunc(func() {
		// It may have died: then end is too late to matter. If it lives, what it has answered already is read first.
		time.AfterFunc(closedStdinGrace, func() { end(errClosedInput) })
	})}, rpc.Options{
		MaxLine:        s.workload.limits.maxLine,
		Reserve:        s.memory.reserve,
		OnNotification: func(method string, params []byte) { s.handleNotification(f, method, params) },
		OnNoise:        func(line []byte, why error) { s.handleNoise(f, line, why) },
		Gone:           func(err error) *rpc.Error { return connectionEnded(connCtx, s.workload.id(), err) },
	})
	f.conn = conn
	s.history.processStarted(p.PID, conn.Stats)
	return conn
}

// lastAnswers is how long a child that has closed its standard input may go on to answer.
const closedStdinGrace = time.Second

// listener is a child's standard input that notices when nobody listens at it any more.
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

// TryWrite is what rpc.Conn asks for.
func (l *childStdin) TryWrite(p []byte) (int, error) {
	n, err := l.Stdin.TryWrite(p)
	if err != nil {
		l.closed()
	}
	return n, err
}

// converse shakes hands and serves calls. It returns when ctx, the conversation's, has ended and what was in
// flight is answered. end ends the conversation, and the other side with it as far as it can be.
func (s *instance) handshakeAndServe(ctx context.Context, f *forwarder, end func(error), ready func(*handshake)) error {
	var err error
	aside.Run(func() { err = s.becomeReady(ctx, f, end, ready) }) // deep, and from here on this goroutine only waits
	if err != nil {
		return err
	}
	defer f.relist.start(ctx, func(ctx context.Context) { s.relist(ctx, f) })()
	defer s.startHealthCheck(ctx, f, end)()
	return s.serve(ctx, f)
}

// introduce shakes hands and says what came of it.
func (s *instance) becomeReady(ctx context.Context, f *forwarder, end func(error), ready func(*handshake)) error {
	hs, err := s.handshakeInTime(ctx, f, end)
	if err != nil {
		return err
	}
	s.breaker.Close()
	s.applyHandshake(f, hs)
	ready(hs)
	return nil
}

// shake shakes hands, within the unit's time.
func (s *instance) handshakeInTime(ctx context.Context, f *forwarder, end func(error)) (*handshake, error) {
	handshakeCtx, cancel := context.WithTimeoutCause(ctx, s.workload.limits.handshake, errHandshakeTimeout)
	defer cancel()
	recorder := &stepRecorder{peer: f.conn}
	hs, err := exchangeHandshake(handshakeCtx, recorder, s.workload, s.host)
	if err == nil {
		return hs, nil
	}
	timeoutErr := func() error {
		return f.withNoise(fmt.Errorf("it did not answer %s within %s", recorder.last, s.workload.limits.handshake))
	}
	switch kind := rpc.AsError(err).Details().Kind; { // an extension's own error has none
	case contextError(ctx) != nil:
		cause := context.Cause(ctx)
		if _, ended := errors.AsType[*child.ExitError](cause); ended {
			cause = f.withNoise(cause)
		}
		return nil, cause
	case handshakeCtx.Err() != nil, kind == rpc.CodeTimeout.Kind():
		err := timeoutErr()
		end(err)
		return nil, err
	case kind == rpc.CodeExited.Kind() && s.workload.transport.Type == manifest.Stdio:
		<-handshakeCtx.Done() // the connection has ended, and its end, which says it better, is about to be the cause
		if cause := context.Cause(handshakeCtx); cause != errHandshakeTimeout {
			return nil, f.withNoise(cause)
		}
		return nil, timeoutErr()
	}
	return nil, f.withNoise(fmt.Errorf("handshake: %w", err))
}

var errHandshakeTimeout = errors.New("the handshake took too long")

// steps remembers the last request of a handshake.
type stepRecorder struct {
	peer
	last string
}

func (s *stepRecorder) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	s.last = method
	return s.peer.Call(ctx, method, params)
}

// withNoise is err with the first line that the child wrote instead of a message, which may be the reason of a handshake
// that failed.
func (f *forwarder) withNoise(err error) error {
	if line := f.firstNoise.Load(); line != nil {
		return fmt.Errorf("%w; it wrote %q to standard output, which is not a message", err, *line)
	}
	return err
}

// overdue is ctx.Err(). It waits for it if ctx's deadline has passed: a call that ends with that deadline has a timer
// of its own, which may be the faster one.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err()
}

// learn takes over what the child said of itself, and announces it.
func (s *instance) applyHandshake(f *forwarder, hs *handshake) {
	before := f.handshake.Swap(hs)
	s.history.handshakeSucceeded(hs)
	if before == nil || !slices.Equal(before.problems, hs.problems) { // a list can be read again and again
		for _, d := range hs.problems {
			s.log.Warn("handshake", "code", d.Code, "problem", d.Message)
		}
	}
	s.mesh.Update(func(a *mesh.Announce) {
		a.HandshakeHash, a.Dialect = hs.hash, string(hs.dialect)
	})
}

// serve answers calls with f until ctx ends.
func (s *instance) serve(ctx context.Context, f *forwarder) error {
	dialect, tools := f.handshake.Load().dialect, len(f.handshake.Load().tools)
	// How long a stop waits for calls in flight is decided by who ends the life: when the child is stopped, or
	// the connection, they end with it. An operator's drain waits for the longest call there can be.
	return s.serveHandler(ctx, f, mesh.ServeOptions{
		CallTimeout: s.workload.limits.call, MaxCallTimeout: s.workload.limits.maxCall,
		MaxInflight: s.workload.limits.maxInflight, DrainTimeout: s.workload.limits.maxCall,
		OnReady: func() { s.log.Info("extension ready", "dialect", dialect, "tools", tools) },
	})
}

// answer answers calls with h until ctx ends. Where an operator has asked for a drain it stops taking them, and keeps
// what runs until ctx ends all the same.
func (s *instance) serveHandler(ctx context.Context, h rpc.Handler, opt mesh.ServeOptions) error {
	serveCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	retired := make(chan struct{})
	retire := sync.OnceFunc(func() { close(retired) })
	defer retire()
	s.history.setServing(end, retired)
	if s.history.isDrained() { // before there was anything to be ended
		s.setState(heartbeat.Draining, errDrain.Error())
		retire()
		<-ctx.Done()
		return nil
	}
	// From here on it is not ready, whatever Serve was about to say; the end of what runs, which supervision hears of, may
	// be a while off.
	reported := make(chan struct{})
	stopReport := context.AfterFunc(serveCtx, func() {
		defer close(reported)
		s.setState(heartbeat.Restarting, s.reason(context.Cause(serveCtx)))
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
	if err == nil {
		<-ctx.Done()
	}
	return err
}

func (s *instance) newForwarder() *forwarder {
	return &forwarder{
		breaker: s.breaker, passthrough: s.workload.announce.Context.Passthrough, maxResult: s.workload.limits.maxResult,
		checkNow: make(chan struct{}, 1), replicas: s.workload.replicaSet, memory: s.memory,
	}
}

// closedOutput is the end of a child's output. Behind it is io.EOF: child.Run takes it for the process's end
// where that follows.
type closedOutputError struct{}

func (closedOutputError) Error() string { return "it closed its standard output and lived on" }
func (closedOutputError) Unwrap() error { return io.EOF }

var (
	errClosedOutput error = closedOutputError{}
	errClosedInput        = errors.New("it closed its standard input and lived on")
)

// gone is what calls in flight are told when the conversation has ended, of which ctx knows the cause.
func connectionEnded(ctx context.Context, id string, err error) *rpc.Error {
	cause := context.Cause(ctx)
	if exit, ok := cause.(*child.ExitError); ok {
		// Not what it wrote to stderr, which may hold anything: operators find that in status and logs.
		return rpc.NewError(rpc.CodeExited, rpc.Details{Status: exit.Status()},
			"%s ended with the call in flight: %s", id, exit.Status())
	}
	switch {
	case errors.Is(cause, context.Canceled):
		cause = errors.New("its bridge stops")
	case cause == nil && errors.Is(err, io.EOF):
		cause = errClosedOutput
	case cause == nil:
		cause = err
	}
	return rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "%s was ended with the call in flight: %s", id, plainErrorText(cause.Error()))
}
