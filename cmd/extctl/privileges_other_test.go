//go:build !linux

package main

import "os"

// heedModes reports whether the modes of files count for what the tests start.
func heedModes() bool { return os.Geteuid() != 0 }
