package child

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// sysAttr starts a process in a console group of its own, which does not receive this console's Ctrl-C.
type sysAttr struct{ attr *syscall.SysProcAttr }

func newSysAttr(string) *sysAttr {
	return &sysAttr{&syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}}
}

// descendants are a job object: it contains the process and its descendants, and all of them end when the job is ended or this
// process exits for any reason. There is no signal that a process could handle. A descendant that is started in the
// moment before the process is added to the job is missed.
type descendants struct {
	proc *os.Process
	job  windows.Handle // 0: it could not be created; then only the process itself is ended
}

func newDescendants(p *os.Process, _ string, _ *sysAttr) *descendants {
	f := &descendants{proc: p}
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

func (f *descendants) terminateGroup() { f.kill() }
func (f *descendants) terminate()      { f.kill() }

func (f *descendants) kill() {
	if f.job != 0 {
		windows.TerminateJobObject(f.job, 1)
		return
	}
	f.proc.Kill()
}

func (f *descendants) gone() bool {
	f.kill() // the leader has exited; its descendants get no time to exit
	return true
}

func (f *descendants) close() {
	if f.job != 0 {
		windows.CloseHandle(f.job)
		f.job = 0
	}
}

// status returns how a process ended. Windows has no signals.
func status(s *os.ProcessState) (code int, signal string) { return s.ExitCode(), "" }
