package proc

import "syscall"

// endWithUs has a process killed when this one is gone, even while it is stopped.
func endWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// Freeze stops a process (SIGSTOP).
func Freeze(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }

// Thaw lets it go on (SIGCONT).
func Thaw(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }
