//go:build !linux

package proc

import "time"

// CPU is the processor time that a process has used; 0 where there is no /proc.
func CPU(int) time.Duration { return 0 }

// Memory is a process's resident memory in MB, now and at most; 0 where there is no /proc.
func Memory(int) (now, peak float64) { return 0, 0 }
