//go:build !linux

package child

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("not on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Subreaper is for Linux only.
func Subreaper() error { return errUnsupported }

func watchOrphans() bool { return false }
func unwatchOrphans()    {}

// guardAttr says that there is no guard: without /proc it would find nobody.
func guardAttr() (*syscall.SysProcAttr, error) { return nil, errUnsupported }

func runGuard(string) {}

// noSet is where Linux keeps the processes that somebody waits for.
type noSet struct{}

var known noSet

func (noSet) add(int)    {}
func (noSet) remove(int) {}

// Survivors is for Linux only.
func Survivors() []int { return nil }
