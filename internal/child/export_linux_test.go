package child

import "golang.org/x/sys/unix"

// Belonging lists the living children of another bridge.
var Belonging = belonging

// WithoutCgroups makes Run do without cgroups, until the returned func is called.
func WithoutCgroups() (undo func()) {
	before := noCgroup.Swap(true)
	return func() { noCgroup.Store(before) }
}

// HasCgroups reports whether Run uses cgroups here.
func HasCgroups() bool { return cgroupBase() != "" && !noCgroup.Load() }

// Cgroups lists those that are there for a cookie.
var Cgroups = cgroupsOf

// EndSubreaper undoes Subreaper, which a program never does.
func EndSubreaper() {
	subreaper.Store(false)
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
}

// RemoveCgroups removes those that are empty.
func RemoveCgroups(cookie string) {
	for _, c := range cgroupsOf(cookie) {
		c.remove()
	}
}
