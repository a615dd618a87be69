//go:build unix

package discovery

import "syscall"

// nonblock keeps the open of a pipe, put in a file's place at the last moment, from waiting for a writer.
const nonblock = syscall.O_NONBLOCK
