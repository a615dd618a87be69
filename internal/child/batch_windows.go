package child

import (
	"os"
	"path/filepath"
	"syscall"
)

// runBatch makes cmd.exe run path if that is a batch file, and returns the program to start.
func runBatch(attr *syscall.SysProcAttr, path string, args []string) (program string, err error) {
	if !isBatch(path) {
		return path, nil
	}
	attr.CmdLine, err = batchLine(path, args)
	return filepath.Join(os.Getenv("SystemRoot"), "System32", "cmd.exe"), err
}
