package bridge

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/child"
	state "github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// instance is one replica of a workload: its identity on the mesh, and the runs of its processes.
type instance struct {
	workload *workload
	agent    string       // the version that its children receive
	state    func() error // makes the state directory
	mesh     *serve.Instance
	memory   *memory
	updates  *subscriptions
	turns    *startTurns
	log      *slog.Logger
	breaker  *breaker.Breaker
	sup      *supervise.Supervisor
	history  runHistory
	output
	keepTools func(names map[string]bool) // the others need no counts
	changed   func()                      // reports that the entry in the inventory has changed
	forget    func()                      // removes it from there

	stopped func() bool // reports whether run's context has ended; set by run before the first run begins

	notStartable     atomic.Bool // the last run failed because its program cannot be started
	restartsWhenIdle atomic.Bool // a restart is waiting for the calls in flight
}

// output is what an extension sends by itself: lines for people, and notifications.
type output struct {
	lines        *ring // the last lines
	noise        noiseLimits
	eventLimit   *rate.Limiter
	publishLine  func(logLine)
	publishEvent func(notification []byte) error
}

// As the cause of the end of run's context, these mean that the instance will not return.
var (
	errRemoved  = errors.New("it was removed")
	errReplaced = errors.New("its manifest or its settings have changed")
)

// run supervises the runs of the instance until ctx ends. It returns when nothing of it is running any more. If the cause
// of ctx's end is errRemoved or errReplaced, the instance is not listed any more.
func (s *instance) run(ctx context.Context) {
	s.stopped = func() bool { return ctx.Err() != nil }
	defer context.AfterFunc(ctx, func() { s.apply(state.Stop, "") })()
	if s.workload.gated != "" {
		s.apply(state.Gate, s.workload.gated)
		<-ctx.Done()
	} else {
		_ = s.sup.Run(ctx) // its error is ctx's cause
	}
	if cause := context.Cause(ctx); cause == errRemoved || cause == errReplaced {
		s.forget()
		return
	}
	s.apply(state.Leave, "")
}

// present returns the workload of s as the next run uses it: with the present content of the files to which its manifest refers, as after
// the rotation of a token. The next reload replaces the instance's own workload. It fails if a file has never been there.
func present(s *instance) (*workload, error) {
	files := s.workload.files
	if files == nil {
		return s.workload, nil
	}
	now, err := files.present()
	if err == nil && now.gated != "" {
		err = errors.New(now.gated)
	}
	switch {
	case err != nil && files.absent != nil: // the placeholders of its own workload were never replaced
		return nil, err
	case err != nil:
		return s.workload, nil
	}
	files.secrets[max(0, s.mesh.Announced().Replica-1)].Store(&now.redact)
	return now, nil
}

// entry returns the instance's entry in the inventory.
func (s *instance) entry() wire.InventoryInstance {
	status := s.mesh.Status()
	i := wire.InventoryInstance{Announce: s.mesh.Announced(), Restarts: status.Restarts(), Breaker: s.breakerState()}
	i.State, i.Reason = status.State()
	return i
}

// apply applies an event to the instance's state machine.
func (s *instance) apply(kind state.Kind, reason string) (accepted bool) {
	return s.mesh.Apply(state.Event{Kind: kind, Reason: reason})
}

// servingEnded reports why a run takes no further calls. While the instance is stopping, that is the reason.
func (s *instance) servingEnded(why error) {
	if s.stopped() {
		s.apply(state.Stop, "")
		return
	}
	s.apply(state.End, s.reason(why))
}

// restart starts a new run, from any state. The old run accepts no calls from now on.
func (s *instance) restart() {
	s.restartsWhenIdle.Store(false)
	s.apply(state.Restart, "")
	s.sup.Restart()
}

var errDrain = errors.New(state.ReasonDrain)

// drain finishes the calls in flight and accepts no new ones until an operator requests a restart. That also applies if the
// process exits in the meantime or was not ready yet. The result states when NATS has stopped sending it calls, and when those
// in flight are complete.
func (s *instance) drain() serving {
	s.restartsWhenIdle.Store(false)
	return stopServing(s)
}

// stopServing drains an instance, for whatever purpose.
func stopServing(s *instance) serving {
	if !s.apply(state.Drain, "") { // it accepts no calls anyway
		return serving{retired: alreadyClosed, idle: alreadyClosed}
	}
	return s.history.stopServing(errDrain)
}

// isDrained reports whether an operator has drained the instance, and not in order to restart it.
func isDrained(s *instance) bool {
	return s.mesh.Status().Drained() && !s.restartsWhenIdle.Load()
}

// drainFirst drains the instance. The returned function restarts it when the calls in flight are complete, or after limit.
// It is nil if that has been requested already.
func (s *instance) drainFirst(limit time.Duration) (restart func(context.Context)) {
	if !s.restartsWhenIdle.CompareAndSwap(false, true) {
		return nil
	}
	idle := stopServing(s).idle
	return func(ctx context.Context) {
		late := time.NewTimer(limit)
		defer late.Stop()
		select {
		case <-idle:
		case <-late.C:
		case <-ctx.Done(): // the bridge is stopping
			return
		}
		if s.restartsWhenIdle.CompareAndSwap(true, false) { // otherwise restarted or drained since then
			s.restart()
		}
	}
}

var alreadyClosed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// runEnded reports the end of a run and the supervisor's decision. runOnce reports that a run begins.
func (s *instance) runEnded(e supervise.Event) {
	reason := s.reason(e.Err)
	if !e.Failed {
		s.apply(state.End, reason)
		s.logEnd(e, reason)
		return
	}
	permanent := isPermanent(e.Err)
	s.notStartable.Store(permanent)
	s.mesh.Apply(state.Event{Kind: state.GaveUp, Reason: reason, Restarts: e.Restarts, Permanent: permanent})
	level := slog.LevelDebug
	if s.history.firstGivenUp() {
		level = slog.LevelError
	}
	s.log.Log(context.TODO(), level, "extension failed", "restarts", e.Restarts, "error", reason, "retry_in", e.Delay.Round(time.Millisecond).String())
}

// isPermanent reports whether a run ended because its program does not exist or cannot be executed.
func isPermanent(err error) bool {
	start, ok := errors.AsType[*child.StartError](err)
	return ok && start.Permanent()
}

// retryStart starts a new run if the last one failed because its program could not be started: it may be installed now.
func (s *instance) retryStart() {
	if s.notStartable.Load() {
		s.sup.Restart()
	}
}

// logEnd logs the end of a run. Of repeated handshake failures only the first is logged as an error.
func (s *instance) logEnd(e supervise.Event, reason string) {
	if errors.Is(e.Err, supervise.ErrRestart) {
		s.log.Info("extension restarts", "reason", "restart requested")
		return
	}
	msg, level := "extension ended", slog.LevelWarn
	if !e.Ready {
		msg, level = "extension did not start", slog.LevelError
		if !s.history.firstFailure() {
			level = slog.LevelDebug
		}
	}
	s.log.Log(context.TODO(), level, msg, "error", reason, "retry_in", e.Delay.Round(time.Millisecond).String())
}

// maxReason limits the length of a reason, which is part of heartbeats, the catalog and logs.
const maxReason = 1 << 10

// reason returns err as text for the catalog. The text may contain output of the child, so it is cleaned.
func (s *instance) reason(err error) string {
	if err == nil {
		return "it ended on its own"
	}
	return s.workload.clean(plainErrorText(err.Error()), maxReason)
}

// breakerChanged reports the breaker's new state.
func (s *instance) breakerChanged(to heartbeat.BreakerState, retryAt time.Time) {
	log := s.log.With("name", s.breaker.Name())
	if to == heartbeat.BreakerOpen {
		log.Warn("breaker open", "retry_at", retryAt)
		time.AfterFunc(time.Until(retryAt), s.changed) // half-open: callers that have other instances make no call that would show it
	} else {
		log.Info("breaker " + string(to))
	}
	s.changed()
}

// breakerState returns the breaker's state for heartbeats.
func (s *instance) breakerState() *heartbeat.Breaker {
	current, retryAt := s.breaker.State()
	b := &heartbeat.Breaker{State: current}
	if !retryAt.IsZero() {
		at := retryAt.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond) // rounded up
		b.RetryAt = &at
	}
	return b
}
