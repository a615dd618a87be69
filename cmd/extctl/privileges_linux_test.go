package main

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// heedModes makes what this goroutine starts from now on heed the modes of files, which root does not: a bad disk or
// a foreign directory can then be played on a machine, or in a container, where tests run as root. It reports whether
// modes count. The goroutine keeps its thread for itself, and the thread ends with it.
func heedModes() bool {
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
