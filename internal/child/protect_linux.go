package child

import "golang.org/x/sys/unix"

// Protect prevents other processes of the same user, such as extensions, from reading this process's environment and
// memory and from tracing it: it marks the process as not dumpable (PR_SET_DUMPABLE). A main calls it before anything
// else. It does not protect against a process with CAP_SYS_PTRACE, such as root's. It also disables core dumps, and only
// root can then attach a debugger.
//
// It works on Linux only; elsewhere it does nothing.
func Protect() {
	// The call fails for an invalid argument only.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
