//go:build unix && !linux

package child

import "syscall"

// sysAttr starts a process in a session of its own, which is also a group of its own and separates it from the terminal.
type sysAttr struct{ attr *syscall.SysProcAttr }

func newSysAttr(string) *sysAttr { return &sysAttr{&syscall.SysProcAttr{Setsid: true}} }
