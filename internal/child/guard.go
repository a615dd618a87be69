package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// MaybeGuard runs the guard, and does not return, if this process was started as one by Guard. A program that calls Guard
// must call it first in main, a test binary in TestMain.
func MaybeGuard() {
	if prefix := os.Getenv(guardVar); prefix != "" {
		runGuard(prefix)
		os.Exit(0)
	}
}

// Guard starts a second process of this program that watches this one: if this process is killed, the guard ends
// everything that Run started within two seconds, including daemons that left their group or session, as long as they
// kept EXTMESH_COOKIE in their environment. A guard that ends is replaced. stop ends the guard without ending anything
// else; call it after the last Run.
//
// When Guard returns, the guard has been started, but may need some more milliseconds until it is ready; then it also
// handles what has happened before. If it never becomes ready, failed is called once with the reason.
//
// It works on Linux only; elsewhere it returns errors.ErrUnsupported (on Windows, children are in a job object that ends
// with this process). A program can run without a guard, but should report it.
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

// guardName is the guard's name in the process list. It differs from the program's name: otherwise killall would end the
// guard together with the process that it watches.
const guardName = "extmesh-guard"

// guard is the parent's side of a guard process.
type guard struct {
	quit chan struct{}

	mu   sync.Mutex
	pipe *os.File // the guard's stdin; EOF without exitByte means that this process was killed
	proc *os.Process
}

// start starts the guard process, which writes a byte to ready when it is ready.
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
	// /proc/self/exe is the running program, even if its file has been replaced. The guard's environment contains the
	// marker in another variable, so that the guard does not end itself.
	proc, err := os.StartProcess("/proc/self/exe", []string{guardName, "(guard)"}, &os.ProcAttr{
		Dir: "/", Env: []string{guardVar + "=" + markerPrefix()}, Files: []*os.File{p.child[0], p.child[1], null}, Sys: attr,
	})
	if err != nil {
		w.Close()
		ready.Close()
		return nil, err
	}
	known.Store(proc.Pid, nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proc = proc
	select {
	case <-g.quit: // stopped while a new guard was being started: it exits immediately
		w.Write([]byte{exitByte})
		w.Close()
	default:
		g.pipe = w
	}
	return ready, nil
}

// await waits until the guard process is ready. If it does not become ready, await ends it: the program may not call
// MaybeGuard.
func (g *guard) await(ready *os.File) error {
	defer ready.Close()
	ready.SetReadDeadline(time.Now().Add(guardWait))
	n, err := ready.Read(make([]byte, 1))
	if n == 1 {
		return nil
	}
	ended := errors.Is(err, io.EOF)
	g.dismiss() // if it is only slow, it must not treat EOF as the end of this process
	g.mu.Lock()
	proc := g.proc
	g.mu.Unlock()
	select {
	case <-g.quit: // it was dismissed before it was ready
		proc.Wait()
		known.Delete(proc.Pid)
		return nil
	default:
	}
	proc.Kill()
	state, err := proc.Wait()
	known.Delete(proc.Pid)
	if ended && err == nil && state.ExitCode() == -1 {
		return errGuardKilled
	}
	return errors.New("it did not become ready: does main call child.MaybeGuard first?")
}

// errGuardKilled means that another process killed a guard before it was ready.
var errGuardKilled = errors.New("it was killed before it was ready")

// guardWait is the time that a guard has to become ready. It is long, for a machine on which everything starts at once.
const guardWait = 30 * time.Second

// exitByte makes a guard exit normally. EOF without it means that the parent was killed.
const exitByte = 'q'

func (g *guard) dismiss() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		g.pipe.Write([]byte{exitByte})
		g.pipe.Close()
		g.pipe = nil
	}
}

// watch starts another guard whenever one has ended, until quit is closed. up reports whether a guard is running.
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
	known.Delete(proc.Pid)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		g.pipe.Close()
		g.pipe = nil
	}
}
