package bridge

import (
	"context"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// runHistory is the state of an instance's current run, and what is kept of earlier runs.
type runHistory struct {
	mu              sync.Mutex
	handshakeFailed bool              // since the last successful handshake one has failed, which was logged
	givenUp         bool              // since then it also ran out of restarts, which was logged
	ready           bool              // a handshake has succeeded
	exit            *Exit             // of the last process that ended abnormally
	problems        []wire.Diagnostic // of the last handshake
	listings        listings          // of the last handshake
	skipped         Skipped           // in earlier runs

	pid      int // of the current run
	stats    func() jsonrpc.Stats
	activity func() child.Activity
	cpu      processorTime
	serving  serving
}

// serving is how the current run takes calls; the zero value if it takes none yet.
type serving struct {
	end     context.CancelCauseFunc // stops it
	retired <-chan struct{}         // closed when calls have stopped arriving
	idle    <-chan struct{}         // closed when, in addition, those in flight are complete
}

// Exit is how a process ended.
type Exit struct {
	Status     string    `json:"status"` // "exit status 3", "signal SIGKILL"
	UptimeSecs float64   `json:"uptime_secs"`
	Cause      string    `json:"cause,omitempty"`       // why the bridge stopped it, if it did
	Reason     string    `json:"reason,omitempty"`      // the line of its output that is the likely reason
	StderrTail string    `json:"stderr_tail,omitempty"` // last 4 KiB, with known secrets replaced
	At         time.Time `json:"at"`
}

// Skipped counts child output that was not used, over all runs of an instance.
type Skipped struct {
	Noise      uint64 `json:"noise"`       // lines of standard output that are not messages
	UnknownIDs uint64 `json:"unknown_ids"` // late or repeated responses, and responses to unknown ids
	LongLines  uint64 `json:"long_lines"`  // lines longer than max_line
	Unsent     uint64 `json:"unsent"`      // messages to a child that does not read
	Events     uint64 `json:"events"`      // notifications over the rate limit
}

func (a Skipped) plus(s jsonrpc.Stats) Skipped {
	return Skipped{a.Noise + s.Noise, a.UnknownIDs + s.Unknown, a.LongLines + s.Long, a.Unsent + s.Dropped, a.Events}
}

// processStarted records the process of a new run.
func (r *runHistory) processStarted(p *child.Process, stats func() jsonrpc.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pid, r.stats, r.activity = p.PID, stats, p.Activity
}

// droppedEvent counts a notification that was dropped.
func (r *runHistory) droppedEvent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped.Events++
}

// runEnded records the end of a run. exit is how its process ended, nil after a clean stop.
func (r *runHistory) runEnded(exit *child.ExitError, clean func(string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats != nil {
		r.skipped = r.skipped.plus(r.stats())
	}
	r.pid, r.stats, r.activity, r.serving = 0, nil, nil, serving{}
	of := time.Duration(0)
	if exit != nil {
		of = exit.CPU
	}
	r.cpu.ended = max(r.cpu.ended+of, r.cpu.shown)
	if exit == nil {
		return
	}
	r.exit = &Exit{Status: exit.Status(), UptimeSecs: exit.Uptime.Seconds(), Reason: exit.Reason, StderrTail: exit.StderrTail,
		At: time.Now().UTC().Truncate(time.Millisecond)}
	if exit.Cause != nil {
		r.exit.Cause = clean(exit.Cause.Error())
	}
}

// handshakeSucceeded records a successful handshake.
func (r *runHistory) handshakeSucceeded(hs *handshake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.handshakeFailed, r.givenUp, r.problems, r.listings = true, false, false, hs.problems, hs.listings
}

// lastListings returns the lists of the last handshake.
func (r *runHistory) lastListings() listings {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listings
}

// wasReady reports whether a handshake of this or an earlier run has succeeded.
func (r *runHistory) wasReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready
}

// firstFailure records a failed handshake and reports whether it is the first one in a row.
func (r *runHistory) firstFailure() bool { return r.first(&r.handshakeFailed) }

// firstGivenUp records that the instance ran out of restarts and reports whether that is the first time since it was ready.
func (r *runHistory) firstGivenUp() bool { return r.first(&r.givenUp) }

func (r *runHistory) first(seen *bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !*seen
	*seen = true
	return first
}

// setServing stores how the current run takes calls.
func (r *runHistory) setServing(s serving) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving = s
}

// stopServing ends serving, if the instance serves. The channels of the result are closed in any case.
func (r *runHistory) stopServing(why error) serving {
	r.mu.Lock()
	s := r.serving
	r.mu.Unlock()
	if s.end == nil {
		return serving{retired: alreadyClosed, idle: alreadyClosed}
	}
	s.end(why)
	return s
}

// fill sets the fields of s that are known here.
func (r *runHistory) fill(s *InstanceStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.PID, s.LastExit, s.Problems = r.pid, r.exit, r.problems
	skipped := r.skipped
	if r.stats != nil {
		skipped = skipped.plus(r.stats())
	}
	if skipped != (Skipped{}) {
		s.Skipped = &skipped
	}
}

// processorTime adds up the processor time of the runs of an instance.
type processorTime struct {
	ended time.Duration // of the runs that have ended, as far as it was read
	shown time.Duration // the last sum that was read: a counter does not decrease
}

// usage returns how much memory the processes of the current run use, their number, and the processor time of all runs.
// It is zero for an extension without processes here, and on systems that do not show it.
func (r *runHistory) usage() (a child.Activity) {
	r.mu.Lock()
	read := r.activity
	r.mu.Unlock()
	if read != nil {
		a = read() // some files, without the lock
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.activity == nil { // the run has ended meanwhile
		a = child.Activity{}
	}
	r.cpu.shown = max(r.cpu.shown, r.cpu.ended+a.CPU)
	a.CPU = r.cpu.shown
	return a
}
