// Package leaks finds what a test has left running, as goleak does, on a machine that is busy, too: goleak looks for
// less than half a second, and what a server or a connection of somebody else's had running ends when it gets to it.
//
//	func TestMain(m *testing.M) { leaks.Main(m) }
//
// It is for tests only.
package leaks

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long what is left may take to end.
const patience = 15 * time.Second

// Main runs the tests of a package and ends the program, with a failure where goroutines are left.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m}, options...)
}

// None fails a test where goroutines are left that the options do not except.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(options...); err != nil {
		t.Error(err)
	}
}

// patient is a testing.M whose goroutines have time to end.
type patient struct{ m *testing.M }

func (p patient) Run() int {
	code := p.m.Run()
	if code == 0 {
		_ = find() // goleak's own look comes behind it
	}
	return code
}

func find(options ...goleak.Option) (err error) {
	for deadline := time.Now().Add(patience); ; {
		if err = goleak.Find(options...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
