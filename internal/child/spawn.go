package child

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// spawn starts the process and sets the fields that describe it.
func (r *run) spawn(ctx context.Context, marker string, files []*os.File) error {
	s := r.spec
	path, err := resolve(s.Command, s.Dir, s.Env)
	if err != nil {
		return &StartError{Command: s.Command, Err: err}
	}
	sys := newSysAttr(marker)
	defer sys.started()
	if path, err = runBatch(sys.attr, path, s.Args); err != nil {
		return &StartError{Command: s.Command, Err: err}
	}
	attr := &os.ProcAttr{Dir: s.Dir, Env: environ(s.Env, marker), Files: files, Sys: sys.attr}
	r.proc, err = startProcess(ctx, path, append([]string{s.Command}, s.Args...), attr)
	if err != nil && sys.withoutCgroup() {
		passing := isAny(err, errTextBusy, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE)
		r.proc, err = startProcess(ctx, path, append([]string{s.Command}, s.Args...), attr)
		noCgroup.Store(err == nil && !passing)
	}
	if err != nil {
		var perr *os.PathError
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return &StartError{Command: s.Command, Err: explain(path, s.Dir, err)}
	}
	r.pid = r.proc.Pid
	r.handle = sys.handle(r.proc)
	r.descendants = newDescendants(r.proc, marker, sys)
	return nil
}

// isAny reports whether err is one of causes.
func isAny(err error, causes ...error) bool {
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// startProcess calls os.StartProcess, and retries on ETXTBSY: a program that this process has just written may still be
// open for writing in another child that is between fork and exec (go.dev/issue/22315).
func startProcess(ctx context.Context, path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		p, err := os.StartProcess(path, argv, attr)
		if !errors.Is(err, errTextBusy) || pause > 100*time.Millisecond || ctx.Err() != nil {
			return p, err
		}
		time.Sleep(pause)
	}
}

// errTextBusy is ETXTBSY. On Windows the constant exists, but no system call returns it.
var errTextBusy error = syscall.ETXTBSY

// StartError is the error of Run for a program that could not be started.
type StartError struct {
	Command string
	Err     error
}

func (e *StartError) Error() string { return fmt.Sprintf("starting %q: %v", e.Command, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// Permanent reports whether another start would fail in the same way until somebody installs or changes something: the
// program or its directory does not exist, or cannot be executed.
func (e *StartError) Permanent() bool {
	return isAny(e.Err, fs.ErrNotExist, fs.ErrPermission, exec.ErrNotFound, syscall.ENOEXEC, syscall.ENOTDIR)
}
