//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// syncDir waits until the names in dir are on disk. It ignores file systems that do not support this for directories.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
