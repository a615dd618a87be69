//go:build !linux

package child

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("not on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Subreaper works on Linux only.
func Subreaper() error { return errUnsupported }

func watchOrphans() bool { return false }
func unwatchOrphans()    {}

// guardAttr fails: without /proc a guard would find no processes.
func guardAttr() (*syscall.SysProcAttr, error) { return nil, errUnsupported }

func runGuard(string) {}

// Survivors works on Linux only.
func Survivors() []int { return nil }
