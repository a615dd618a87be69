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

// Subreaper makes this process the parent of orphans among its descendants, so that what leaves its group,
// or its session, by the usual double fork can be found, ended and reaped when its child ends. It is for a
// program's main, once, before the first Run. From then on, while a Run is under way, zombies that nobody
// waits for are reaped about a second after their end, unless they are in this process's own session.
//
// It is Linux only; elsewhere it returns errors.ErrUnsupported.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	subreaper.Store(true)
	return nil
}

// adopting reports whether orphans end up here: a container's first process gets them unasked.
func adopting() bool { return subreaper.Load() || os.Getpid() == 1 }

// pidSet holds the processes that somebody waits for.
type pidSet struct {
	mu   sync.Mutex
	pids map[int]struct{}
}

var known = pidSet{pids: make(map[int]struct{})}

func (s *pidSet) add(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[pid] = struct{}{}
}

func (s *pidSet) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, pid)
}

func (s *pidSet) has(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pids[pid]
	return ok
}

// reaper is the one goroutine that reaps orphans, shared by the Runs under way.
var reaper struct {
	mu    sync.Mutex
	users int
	stop  chan struct{}
	done  chan struct{}
}

// watchOrphans starts the reaper for the first Run, if orphans come here at all. Each true wants one
// unwatchOrphans.
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

// orphanWait is for how long a zombie that leads a session is left to whoever may still come for it: another
// part of this program can have started it with os/exec and Setsid.
const orphanWait = time.Second

func reapOrphans(stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, unix.SIGCHLD)
	defer signal.Stop(deaths)
	reapAfter(deaths, stop, reapOld)
}

// reapAfter calls reap a moment after a death, and again for those that it returns.
func reapAfter(deaths <-chan os.Signal, stop <-chan struct{}, reap func(since map[int]time.Time, now time.Time) map[int]time.Time) {
	look := time.NewTimer(0)
	defer look.Stop()
	armed := true // look fires: it must not be put off by one death after another
	since := make(map[int]time.Time)
	for {
		select {
		case <-stop:
			reap(since, time.Now())
			return
		case <-deaths:
			if !armed {
				look.Reset(orphanWait / 10)
				armed = true
			}
			continue
		case <-look.C:
		}
		since = reap(since, time.Now())
		if armed = len(since) > 0; armed {
			look.Reset(orphanWait / 2)
		}
	}
}

// reapOld reaps the zombies that nobody waits for and returns those that may be somebody's, to look at again.
// All that we start leads a session of its own, and there is no way from one session into an older one. So
// what is in our session was started by somebody else, and what is in another one without leading it was
// adopted.
func reapOld(since map[int]time.Time, now time.Time) map[int]time.Time {
	ours, _ := unix.Getsid(0)
	next := make(map[int]time.Time)
	for _, pid := range ownChildren() {
		if known.has(pid) {
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
