//go:build !windows

package child

import "syscall"

// runBatch changes nothing: only Windows has batch files.
func runBatch(_ *syscall.SysProcAttr, path string, _ []string) (string, error) { return path, nil }
