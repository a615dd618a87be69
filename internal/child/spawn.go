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
	sys := newSysAttr()
	attr := &os.ProcAttr{Dir: s.Dir, Env: environ(s.Env, mark), Files: files, Sys: sys.attr}
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		l.proc, err = os.StartProcess(path, append([]string{s.Command}, s.Args...), attr)
		// A file that was just written here may be open for writing in a sibling between its fork and exec
		// (go.dev/issue/22315); that passes.
		if !errors.Is(err, errTextBusy) || pause > 100*time.Millisecond || ctx.Err() != nil {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		var perr *os.PathError
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return fmt.Errorf("starting %q: %w", s.Command, explain(path, s.Dir, err))
	}
	l.handle = sys.handle(l.proc)
	l.family = newFamily(l.proc, mark)
	return nil
}

// errTextBusy is ETXTBSY, which Windows has by number only.
var errTextBusy error = syscall.ETXTBSY
