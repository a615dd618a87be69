package child

import "golang.org/x/sys/unix"

// Protect keeps other processes of the same user, which the extensions are, from reading this process's environment
// and memory and from tracing it: it marks the process as not dumpable (PR_SET_DUMPABLE). A main calls it before
// anything else. It does not hold against a process with CAP_SYS_PTRACE, as root has. It also means no core dumps, and
// that only root can attach a debugger.
//
// It is Linux only; elsewhere it does nothing.
func Protect() {
	// The call fails for an invalid argument only.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
