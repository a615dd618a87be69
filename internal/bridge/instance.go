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

// slot is one replica of a unit: its place on the mesh, and the lives of what runs in it.
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

	stateMu sync.Mutex      // held where the mesh is told how the slot is
	ctx     context.Context // run's; guarded by telling
}

// hostInfo is what children are told about us.
type hostInfo struct {
	agentVersion string
}

// run keeps the slot on the mesh and its lives coming until ctx ends. It returns when nothing of it runs any more.
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
		_ = s.sup.Run(ctx) // ctx's cause: there is no other way out
	}
	return s.mesh.Leave(context.Cause(ctx)) // after the child's end, so that the mesh sees draining first
}

// stopping is the reason of a slot that leaves.
const reasonStopping = "stopping"

// tell tells the mesh how the slot is. What an operator has asked for comes before what supervision finds, whoever is
// first to say so, and a stop before all; that it is ready says mesh.Slot.Serve.
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

// restart begins a new life now, out of whatever state. What runs takes no more calls, which is said at once: it may
// take its time to end.
func (s *instance) restart() {
	s.history.setDrained(false)
	if s.workload.gated == "" {
		s.setState(heartbeat.Restarting, supervise.ErrRestart.Error())
	}
	s.sup.Restart()
}

var errDrain = errors.New("asked to drain")

// drain lets what is in flight finish and takes nothing new, until somebody asks for a restart: also where it dies
// meanwhile, or had not come as far as taking anything. retired is closed when NATS sends it no more calls.
func (s *instance) drain() (retired <-chan struct{}) {
	if s.workload.gated != "" { // it takes nothing as it is, and a restart would not be the way back
		return alreadyClosed
	}
	s.history.setDrained(true)
	s.setState(heartbeat.Draining, errDrain.Error())
	return s.history.stopServing(errDrain)
}

var alreadyClosed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// transition tells the mesh what supervision decided. Lives that were drained, or in which nothing was started, are no
// restarts.
func (s *instance) transition(e supervise.Event) {
	reason, drained := s.reason(e.Err), s.history.isDrained()
	life := e.Run - s.history.idleRuns()
	switch {
	case e.Kind == supervise.Starting && life == 1:
		s.setState(heartbeat.Spawning, "")
	case e.Kind == supervise.Starting && !drained:
		s.mesh.SetRestarts(uint64(life - 1))
		s.setState(heartbeat.Restarting, reason)
		s.mesh.Beat() // the count is news where state and reason are not
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

// say logs the end of a life. A handshake that fails is an error once, however often it is tried again.
func (s *instance) logEnd(e supervise.Event, reason string) {
	if errors.Is(e.Err, supervise.ErrRestart) {
		s.log.Info("extension restarts", "reason", "asked to")
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

// maxReason bounds what is said of a failure: it goes into beats, the catalog and logs.
const maxReason = 1 << 10

// reason is err for everybody to read. A child has had its part in the text: what it answered to initialize, its
// last words.
func (s *instance) reason(err error) string {
	if err == nil {
		return "it ended by itself"
	}
	return s.workload.clean(plainErrorText(err.Error()), maxReason)
}

// changed tells the mesh of the breaker's new state.
func (s *instance) breakerChanged(state heartbeat.BreakerState, retryAt time.Time) {
	log := s.log.With("name", s.breaker.Name())
	if state == heartbeat.BreakerOpen {
		log.Warn("breaker open", "retry_at", retryAt)
	} else {
		log.Info("breaker " + string(state))
	}
	s.mesh.Beat()
}

// breakerState is what beats say of the breaker.
func (s *instance) breakerState() *heartbeat.Breaker {
	state, retryAt := s.breaker.State()
	b := &heartbeat.Breaker{State: state}
	if !retryAt.IsZero() {
		at := retryAt.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond) // not too early
		b.RetryAt = &at
	}
	return b
}
