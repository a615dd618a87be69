package bridge

import (
	"context"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// record is what is known of a slot's lives: the present one, and what is worth keeping of those before.
type runHistory struct {
	mu              sync.Mutex
	handshakeFailed bool              // a handshake has failed, which was said aloud, and none has succeeded since
	givenUp         bool              // it was out of restarts, likewise
	drained         bool              // nothing is taken until somebody asks for a restart
	idle            int               // lives in which nothing was started, for it was drained: no restarts
	exit            *Exit             // how the last process that did not end as it should did
	problems        []mesh.Diagnostic // of the last handshake
	skipped         Skipped           // in the lives that have ended

	pid      int // of the present life's process
	stats    func() rpc.Stats
	endServe context.CancelCauseFunc // once the present life is ready
	retired  <-chan struct{}         // closed when it takes no more calls
}

// Exit is how a process ended.
type Exit struct {
	Status     string    `json:"status"` // "exit status 3", "signal SIGKILL"
	UptimeSecs float64   `json:"uptime_secs"`
	StderrTail string    `json:"stderr_tail,omitempty"` // its last 4 KiB, known secrets replaced
	Cause      string    `json:"cause,omitempty"`       // why the bridge ended it, if it did
	At         time.Time `json:"at"`
}

// Skipped counts what children sent that is of no use, over all lives of an instance.
type Skipped struct {
	Noise      uint64 `json:"noise"`       // lines of standard output that are no message
	UnknownIDs uint64 `json:"unknown_ids"` // answers to nothing that waits: late, twice, or with an id never given
	LongLines  uint64 `json:"long_lines"`  // lines over max_line
	Unsent     uint64 `json:"unsent"`      // answers and notifications of ours to a child that does not read
	Events     uint64 `json:"events"`      // notifications that came too fast
}

func (a Skipped) plus(s rpc.Stats) Skipped {
	return Skipped{a.Noise + s.Noise, a.UnknownIDs + s.Unknown, a.LongLines + s.Long, a.Unsent + s.Dropped, a.Events}
}

// begin is a new life's.
func (r *runHistory) processStarted(pid int, stats func() rpc.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pid, r.stats = pid, stats
}

// droppedEvent counts a notification that is not passed on.
func (r *runHistory) droppedEvent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped.Events++
}

// end is that of the life that has ended, exit its process's if it was not a clean stop.
func (r *runHistory) runEnded(exit *child.ExitError, clean func(string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats != nil {
		r.skipped = r.skipped.plus(r.stats())
	}
	r.pid, r.stats, r.endServe, r.retired = 0, nil, nil, nil
	if exit == nil {
		return
	}
	r.exit = &Exit{Status: exit.Status(), UptimeSecs: exit.Uptime.Seconds(), StderrTail: exit.StderrTail,
		At: time.Now().UTC().Truncate(time.Millisecond)}
	if exit.Cause != nil {
		r.exit.Cause = clean(exit.Cause.Error())
	}
}

// shaken says that a handshake has succeeded.
func (r *runHistory) handshakeSucceeded(hs *handshake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handshakeFailed, r.givenUp, r.problems = false, false, hs.problems
}

// firstFailure reports whether a handshake that failed is the first in a row.
func (r *runHistory) firstFailure() bool { return r.first(&r.handshakeFailed) }

// firstGivenUp reports whether it is out of restarts for the first time since it was well.
func (r *runHistory) firstGivenUp() bool { return r.first(&r.givenUp) }

func (r *runHistory) first(seen *bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !*seen
	*seen = true
	return first
}

// drain says whether anything is taken.
func (r *runHistory) setDrained(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drained = on
}

func (r *runHistory) isDrained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drained
}

// idles reports whether a life that begins is one in which nothing is started, and counts it.
func (r *runHistory) beginRun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drained {
		r.idle++
	}
	return r.drained
}

// idled is how many of those there were.
func (r *runHistory) idleRuns() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle
}

// serving keeps what ends the serving, for endServing, and what is closed when that has come about.
func (r *runHistory) setServing(end context.CancelCauseFunc, retired <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endServe, r.retired = end, retired
}

// endServing ends the serving, if there is any. What it returns is closed when no more calls arrive.
func (r *runHistory) stopServing(why error) (retired <-chan struct{}) {
	r.mu.Lock()
	end, retired := r.endServe, r.retired
	r.mu.Unlock()
	if end == nil {
		return alreadyClosed
	}
	end(why)
	return retired
}

// fill tells s what is known.
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
