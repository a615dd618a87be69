package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// instance is one replica of a workload: its identity on the mesh, and the runs of its processes.
type instance struct {
	workload     *workload
	host         hostInfo
	mesh         *mesh.Slot
	memory       *memory
	log          *slog.Logger
	breaker      *breaker.Breaker
	sup          *supervise.Supervisor
	history      runHistory
	lines        *ring // the last lines of stderr
	noiseLimit   rateLimit
	eventLimit   rateLimit // for notifications
	publishLog   func(logLine)
	publishEvent func(notification []byte) error

	stateMu sync.Mutex      // held while the instance's state is reported
	ctx     context.Context // set by run; guarded by stateMu
}

// hostInfo is what children receive about this program.
type hostInfo struct {
	agentVersion string
}

// run announces the instance and supervises its runs until ctx ends. It returns when nothing of it is running any more.
func (s *instance) run(ctx context.Context) error {
	s.stateMu.Lock()
	s.ctx = ctx
	s.stateMu.Unlock()
	s.mesh.Enter()
	stopDraining := context.AfterFunc(ctx, func() { s.setState(heartbeat.Draining, reasonStopping) })
	defer stopDraining()
	if s.workload.gated != "" {
		s.setState(heartbeat.Gated, s.workload.gated)
		<-ctx.Done()
	} else {
		_ = s.sup.Run(ctx) // its error is ctx's cause
	}
	return s.mesh.Leave(context.Cause(ctx)) // after the child has ended, so that the mesh sees the state draining first
}

// reasonStopping is the reason in the state of an instance that is being stopped.
const reasonStopping = "stopping"

// setState reports the instance's state. A stop takes precedence over a drain requested by an operator, and that over the
// supervisor's state, in whatever order they occur. mesh.Slot.Serve sets the state ready.
func (s *instance) setState(state heartbeat.State, reason string) {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	switch {
	case s.ctx != nil && s.ctx.Err() != nil:
		state, reason = heartbeat.Draining, reasonStopping
	case s.history.isDrained():
		state, reason = heartbeat.Draining, errDrain.Error()
	}
	s.mesh.SetState(state, reason)
}

// restart starts a new run, from any state. The old run accepts no calls from now on, which is reported immediately,
// because it may take long to end.
func (s *instance) restart() {
	s.history.setDrained(false)
	if s.workload.gated == "" {
		s.setState(heartbeat.Restarting, supervise.ErrRestart.Error())
	}
	s.sup.Restart()
}

var errDrain = errors.New("drain requested")

// drain finishes the calls in flight and accepts no new ones until an operator requests a restart. That also applies if the
// process exits in the meantime or was not ready yet. retired is closed when NATS has stopped sending it calls.
func (s *instance) drain() (retired <-chan struct{}) {
	if s.workload.gated != "" { // it accepts no calls anyway, and a restart would not start it
		return alreadyClosed
	}
	s.history.setDrained(true)
	s.setState(heartbeat.Draining, errDrain.Error())
	return s.history.stopServing(errDrain)
}

var alreadyClosed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// transition reports the supervisor's decisions. Runs of a drained instance are not counted as restarts.
func (s *instance) transition(e supervise.Event) {
	reason, drained := s.reason(e.Err), s.history.isDrained()
	run := e.Run - s.history.idleRuns()
	switch {
	case e.Kind == supervise.Starting && run == 1:
		s.setState(heartbeat.Spawning, "")
	case e.Kind == supervise.Starting && !drained:
		s.mesh.SetRestarts(uint64(run - 1))
		s.setState(heartbeat.Restarting, reason)
		s.mesh.Beat() // the count has changed even if state and reason have not
	case e.Kind == supervise.Failed && !drained:
		s.setState(heartbeat.Failed, fmt.Sprintf("gave up after %d restarts: %s", e.Restarts, reason))
		level := slog.LevelDebug
		if s.history.firstGivenUp() {
			level = slog.LevelError
		}
		s.log.Log(context.TODO(), level, "extension failed", "restarts", e.Restarts, "error", reason, "retry_in", e.Delay.Round(time.Millisecond).String())
	default:
		s.setState(heartbeat.Restarting, reason)
		if e.Kind != supervise.Starting {
			s.logEnd(e, reason)
		}
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
func (s *instance) breakerChanged(state heartbeat.BreakerState, retryAt time.Time) {
	log := s.log.With("name", s.breaker.Name())
	if state == heartbeat.BreakerOpen {
		log.Warn("breaker open", "retry_at", retryAt)
	} else {
		log.Info("breaker " + string(state))
	}
	s.mesh.Beat()
}

// breakerState returns the breaker's state for heartbeats.
func (s *instance) breakerState() *heartbeat.Breaker {
	state, retryAt := s.breaker.State()
	b := &heartbeat.Breaker{State: state}
	if !retryAt.IsZero() {
		at := retryAt.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond) // rounded up
		b.RetryAt = &at
	}
	return b
}
