package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// MaybeGuard turns this process into a guard if it was started as one by Guard, and does not return then.
// A program that calls Guard calls it first thing in main, a test binary in TestMain.
func MaybeGuard() {
	if cookie := os.Getenv(guardVar); cookie != "" {
		runGuard(cookie)
		os.Exit(0)
	}
}

// Guard starts a small process, this very program again, that watches over this one: should this one be
// killed outright, everything that Run started is dead within two seconds, daemons that left their group
// or session included, as long as they kept EXTMESH_COOKIE in their environment. A guard that dies is
// replaced. stop ends the guard quietly, without killing anything; call it after the last Run.
//
// The guard is there when Guard returns, though it may take some more milliseconds to get to its work, with what
// has happened by then. Should it never get there, failed is told why, once.
//
// It is Linux only; elsewhere it returns errors.ErrUnsupported (on Windows, children are in a job that ends
// with us in any case). A program can go on without a guard, but should say so.
func Guard(failed func(error)) (stop func(), err error) {
	g := &guard{quit: make(chan struct{})}
	ready, err := g.start()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop, or when the first guard has failed
		err := g.await(ready)
		if err != nil && !errors.Is(err, errGuardKilled) {
			failed(fmt.Errorf("starting the guard: %w", err))
			return
		}
		g.watch(err == nil)
	})
	return sync.OnceFunc(func() {
		close(g.quit)
		g.dismiss()
		wg.Wait()
	}), nil
}

// guardName is the guard's name in the process list. It is not that of the program: killall would end the guard
// together with the process that it watches over.
const guardName = "extmesh-guard"

// guard is our side of a guard process.
type guard struct {
	quit chan struct{}

	mu   sync.Mutex
	pipe *os.File // the guard's stdin; its end without a farewell is our death
	proc *os.Process
}

// start starts the process, which says on ready that it is at work.
func (g *guard) start() (ready *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	attr, err := guardAttr()
	if err != nil {
		return nil, err
	}
	var p pipes // its stderr is not used
	if err := p.open(); err != nil {
		return nil, err
	}
	defer p.closeChildEnds()
	w, ready := p.ours[0], p.ours[1]
	p.ours[2].Close()
	// The program is the one that runs, though its file may have been replaced since. Its name says what it is
	// to who looks at the process list. Its environment holds the cookie under another name, or it would be
	// its own prey.
	proc, err := os.StartProcess("/proc/self/exe", []string{guardName, "(guard)"}, &os.ProcAttr{
		Dir: "/", Env: []string{guardVar + "=" + cookie()}, Files: []*os.File{p.child[0], p.child[1], null}, Sys: attr,
	})
	if err != nil {
		w.Close()
		ready.Close()
		return nil, err
	}
	known.add(proc.Pid)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proc = proc
	select {
	case <-g.quit: // stopped while a new one was being started: it sees the farewell at once
		w.Write([]byte{farewellByte})
		w.Close()
	default:
		g.pipe = w
	}
	return ready, nil
}

// await waits until the process that was started is at work. One that does not get there is ended: it may not be a
// guard at all.
func (g *guard) await(ready *os.File) error {
	defer ready.Close()
	ready.SetReadDeadline(time.Now().Add(guardWait))
	n, err := ready.Read(make([]byte, 1))
	if n == 1 {
		return nil
	}
	ended := errors.Is(err, io.EOF)
	g.dismiss() // should it be slow only, it must not take the end for our death
	g.mu.Lock()
	proc := g.proc
	g.mu.Unlock()
	select {
	case <-g.quit: // it went home before it was ready
		proc.Wait()
		known.remove(proc.Pid)
		return nil
	default:
	}
	proc.Kill()
	state, err := proc.Wait()
	known.remove(proc.Pid)
	if ended && err == nil && state.ExitCode() == -1 {
		return errGuardKilled
	}
	return errors.New("it did not get ready: does main call child.MaybeGuard first?")
}

// errGuardKilled says that a guard was killed, and not by us, before it was at work.
var errGuardKilled = errors.New("it was killed before it was ready")

// guardWait is for how long a guard may take to get ready. A machine on which everything starts at once is slow.
const guardWait = 30 * time.Second

// farewellByte is what a guard is sent to go home; an end without it is a murder.
const farewellByte = 'q'

func (g *guard) dismiss() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		g.pipe.Write([]byte{farewellByte})
		g.pipe.Close()
		g.pipe = nil
	}
}

// watch starts another guard whenever there is none, until the last one was dismissed. up says that there is one.
func (g *guard) watch(up bool) {
	for {
		if up {
			g.reap()
		}
		for pause, again := 10*time.Millisecond, true; again; pause = min(2*pause, 10*time.Second) {
			t := time.NewTimer(pause)
			select {
			case <-g.quit:
				t.Stop()
				return
			case <-t.C:
			}
			ready, err := g.start()
			again = err != nil || g.await(ready) != nil
		}
		up = true
	}
}

// reap waits for the guard's end.
func (g *guard) reap() {
	g.mu.Lock()
	proc := g.proc
	g.mu.Unlock()
	proc.Wait()
	known.remove(proc.Pid)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		g.pipe.Close()
		g.pipe = nil
	}
}
