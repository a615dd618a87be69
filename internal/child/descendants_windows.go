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

// descendants uses a job object, which contains the process and its descendants: all of them end when the job is ended or
// this process exits for any reason. There is no signal that a process could handle. A descendant that is started in the
// moment before the process is added to the job is missed.
type descendants struct {
	proc *os.Process
	job  windows.Handle // 0: it could not be created; then only the process itself is ended
}

func newDescendants(p *os.Process, _ string, _ *sysAttr) *descendants {
	d := &descendants{proc: p}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return d
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
		return d
	}
	d.job = job
	return d
}

func (d *descendants) terminateGroup() { d.kill() }
func (d *descendants) terminate()      { d.kill() }

func (d *descendants) kill() {
	if d.job != 0 {
		windows.TerminateJobObject(d.job, 1)
		return
	}
	d.proc.Kill()
}

func (d *descendants) gone() bool {
	d.kill() // the leader has exited; its descendants get no time to exit
	return true
}

func (d *descendants) close() {
	if d.job != 0 {
		windows.CloseHandle(d.job)
		d.job = 0
	}
}

// status returns how a process ended. Windows has no signals.
func status(s *os.ProcessState) (code int, signal string) { return s.ExitCode(), "" }
