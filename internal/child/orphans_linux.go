package child

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

var subreaper atomic.Bool

// Subreaper makes this process the parent of orphans among its descendants, so that a process that leaves its group or
// session by a double fork can be found, ended and reaped when the child ends. A program's main calls it once, before the
// first Run. While a Run is in progress, zombies that this program does not wait for are then reaped about a second after
// their exit, unless they are in this process's own session.
//
// It works on Linux only; elsewhere it returns errors.ErrUnsupported.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	subreaper.Store(true)
	return nil
}

// adopting reports whether orphans become children of this process. A container's first process is always their parent.
func adopting() bool { return subreaper.Load() || os.Getpid() == 1 }

// reaper is the goroutine that reaps orphans, shared by all Runs in progress.
var reaper struct {
	mu    sync.Mutex
	users int
	stop  chan struct{}
	done  chan struct{}
}

// watchOrphans starts the reaper for the first Run, if this process is the parent of orphans. If it returns true, the
// caller must call unwatchOrphans.
func watchOrphans() bool {
	if !adopting() {
		return false
	}
	reaper.mu.Lock()
	defer reaper.mu.Unlock()
	if reaper.users++; reaper.users == 1 {
		reaper.stop, reaper.done = make(chan struct{}), make(chan struct{})
		go reapOrphans(reaper.stop, reaper.done) // ends in the last unwatchOrphans, which waits
	}
	return true
}

func unwatchOrphans() {
	reaper.mu.Lock()
	defer reaper.mu.Unlock()
	if reaper.users--; reaper.users == 0 {
		close(reaper.stop)
		<-reaper.done
	}
}

// orphanWait is how long a zombie that is a session leader is not reaped, since another part of this program may have
// started it with os/exec and Setsid, and may wait for it.
const orphanWait = time.Second

func reapOrphans(stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	defer signal.Stop(exits)
	reapAfter(exits, stop, reapOld)
}

// reapAfter calls reap shortly after an exit, and again for the processes that it returns.
func reapAfter(exits <-chan os.Signal, stop <-chan struct{}, reap func(since map[int]time.Time, now time.Time) map[int]time.Time) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed := true // the timer is set: further exits must not postpone it
	since := make(map[int]time.Time)
	for {
		select {
		case <-stop:
			reap(since, time.Now())
			return
		case <-exits:
			if !armed {
				timer.Reset(orphanWait / 10)
				armed = true
			}
			continue
		case <-timer.C:
		}
		since = reap(since, time.Now())
		if armed = len(since) > 0; armed {
			timer.Reset(orphanWait / 2)
		}
	}
}

// reapOld reaps the zombies that this program does not wait for, and returns those that it may wait for, to check them
// again. Every process started by Run is the leader of its own session, and a process cannot join an existing session. So
// a zombie in this process's session was started by another part of the program, and a zombie in another session that is
// not its leader was adopted.
func reapOld(since map[int]time.Time, now time.Time) map[int]time.Time {
	ours, _ := unix.Getsid(0)
	next := make(map[int]time.Time)
	for _, pid := range ownChildren() {
		if _, waits := known.Load(pid); waits {
			continue
		}
		st, ok := readStat(pid)
		if !ok || !st.zombie() || st.session == ours {
			continue
		}
		first, seen := since[pid]
		switch {
		case st.session != pid, seen && now.Sub(first) >= orphanWait:
			reap(unix.P_PID, pid)
		case seen:
			next[pid] = first
		default:
			next[pid] = now
		}
	}
	return next
}
