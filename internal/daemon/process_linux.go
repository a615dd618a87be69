package daemon

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func processorTime() (float64, bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds(), true
}

func virtualMemory() (float64, bool)  { return pages(0) }
func residentMemory() (float64, bool) { return pages(1) }

// pages returns a field of /proc/self/statm, in bytes.
func pages(field int) (float64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || field >= len(fields) {
		return 0, false
	}
	n, err := strconv.ParseUint(fields[field], 10, 64)
	return float64(n) * float64(os.Getpagesize()), err == nil
}

func openFiles() (float64, bool) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return float64(len(names) - 1), err == nil // without d itself
}

func maxFiles() (float64, bool) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return float64(limit.Cur), true
}
