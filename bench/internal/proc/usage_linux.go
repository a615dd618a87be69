package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPU is the processor time that a process has used: that of its threads, to the nanosecond. Those that have ended
// are missing; Go's do not end.
func CPU(pid int) time.Duration {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	total := time.Duration(0)
	for _, t := range tasks {
		data, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		ns, _, _ := bytes.Cut(data, []byte(" "))
		if n, err := strconv.ParseInt(string(ns), 10, 64); err == nil {
			total += time.Duration(n)
		}
	}
	return total
}

// Memory is a process's resident memory in MB: now, and the most there was.
func Memory(pid int) (now, peak float64) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(data)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			now = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			peak = kb / 1024
		}
	}
	return now, peak
}
