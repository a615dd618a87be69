//go:build !linux

package main

import "os"

// enforceFileModes reports whether file modes restrict what the tests start.
func enforceFileModes() bool { return os.Geteuid() != 0 }
