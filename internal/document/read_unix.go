//go:build unix

package document

import "syscall"

// nonblock keeps the open from blocking if a pipe has replaced the file since the check.
const nonblock = syscall.O_NONBLOCK
