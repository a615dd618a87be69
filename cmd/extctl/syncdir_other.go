//go:build !unix

package main

// syncDir does nothing on systems where a directory cannot be opened and synced.
func syncDir(string) error { return nil }
