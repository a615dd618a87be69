//go:build !linux

package child

// Protect does nothing here.
func Protect() {}
