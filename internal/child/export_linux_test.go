package child

import "golang.org/x/sys/unix"

// Belonging returns the running children of another bridge.
var Belonging = belonging

// WithoutCgroups makes Run do without cgroups, until the returned func is called.
func WithoutCgroups() (undo func()) {
	before := noCgroup.Swap(true)
	return func() { noCgroup.Store(before) }
}

// HasCgroups reports whether Run uses cgroups here.
func HasCgroups() bool { return cgroupBase() != "" && !noCgroup.Load() }

// Cgroups returns the existing cgroups for a marker prefix.
var Cgroups = cgroupsOf

// EndSubreaper undoes Subreaper, which no program needs.
func EndSubreaper() {
	subreaper.Store(false)
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
}

// RemoveCgroups removes the empty cgroups for a marker prefix.
func RemoveCgroups(prefix string) {
	for _, c := range cgroupsOf(prefix) {
		c.remove()
	}
}
