//go:build !linux

package main

import (
	"fmt"
	"runtime"
	"syscall"
)

func endWithUs() *syscall.SysProcAttr { return nil }

// freeze refuses: a process that is stopped when this one dies would stay for ever here.
func freeze(int) error {
	return fmt.Errorf("processes are stopped on Linux only, not on %s", runtime.GOOS)
}
func thaw(int) error { return nil }
