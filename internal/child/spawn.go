package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// spawn starts the process and fills in what belongs to it.
func (l *life) spawn(ctx context.Context, mark string, files []*os.File) error {
	s := l.spec
	path, err := resolve(s.Command, s.Dir, s.Env)
	if err != nil {
		return fmt.Errorf("starting %q: %w", s.Command, err)
	}
	sys := newSysAttr(mark)
	defer sys.started()
	attr := &os.ProcAttr{Dir: s.Dir, Env: environ(s.Env, mark), Files: files, Sys: sys.attr}
	l.proc, err = startProcess(ctx, path, append([]string{s.Command}, s.Args...), attr)
	if err != nil && sys.withoutCgroup() {
		l.proc, err = startProcess(ctx, path, append([]string{s.Command}, s.Args...), attr)
		noCgroup.Store(err == nil)
	}
	if err != nil {
		var perr *os.PathError
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return fmt.Errorf("starting %q: %w", s.Command, explain(path, s.Dir, err))
	}
	l.handle = sys.handle(l.proc)
	l.family = newFamily(l.proc, mark, sys)
	return nil
}

// startProcess is os.StartProcess with patience: a file that was just written here may be open for writing
// in a sibling that is between its fork and its exec (go.dev/issue/22315), and that passes.
func startProcess(ctx context.Context, path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		p, err := os.StartProcess(path, argv, attr)
		if !errors.Is(err, errTextBusy) || pause > 100*time.Millisecond || ctx.Err() != nil {
			return p, err
		}
		time.Sleep(pause)
	}
}

// errTextBusy is ETXTBSY, which Windows has by number only.
var errTextBusy error = syscall.ETXTBSY
