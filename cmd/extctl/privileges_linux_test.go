package main

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// enforceFileModes drops the capability that lets root ignore file modes, for everything this goroutine starts from now
// on. Tests that run as root in a container can then simulate an unreadable file. It reports whether modes apply. The
// goroutine keeps its thread, which ends with it.
func enforceFileModes() bool {
	if os.Geteuid() != 0 {
		return true
	}
	runtime.LockOSThread()
	for _, c := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
		if unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) != nil {
			return false
		}
	}
	return true
}
