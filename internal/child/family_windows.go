package child

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// sysAttr starts a process in a console group of its own, which our Ctrl-C does not reach.
type sysAttr struct{ attr *syscall.SysProcAttr }

func newSysAttr(string) *sysAttr {
	return &sysAttr{&syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}}
}

// family is a job object: what the process starts is in it too, and all of it ends when the job is ended or
// when we are, however that happens. There is no polite signal. What the process starts in the instant
// before it is put into the job is missed.
type family struct {
	proc *os.Process
	job  windows.Handle // 0: none could be made; then only the process itself is ended
}

func newFamily(p *os.Process, _ string, _ *sysAttr) *family {
	f := &family{proc: p}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return f
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err == nil {
		p.WithHandle(func(h uintptr) { err = windows.AssignProcessToJobObject(job, windows.Handle(h)) })
	}
	if err != nil {
		windows.CloseHandle(job)
		return f
	}
	f.job = job
	return f
}

func (f *family) terminateGroup() { f.kill() }
func (f *family) terminate()      { f.kill() }

func (f *family) kill() {
	if f.job != 0 {
		windows.TerminateJobObject(f.job, 1)
		return
	}
	f.proc.Kill()
}

func (f *family) gone() bool {
	f.kill() // the leader is dead; there is nobody to be polite to
	return true
}

func (f *family) close() {
	if f.job != 0 {
		windows.CloseHandle(f.job)
		f.job = 0
	}
}

// status is how a process ended. There are no signals here.
func status(s *os.ProcessState) (code int, signal string) { return s.ExitCode(), "" }
