//go:build !linux

package child

// Protect does nothing on this system.
func Protect() {}
