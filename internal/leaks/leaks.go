// Package leaks finds goroutines that a test has left running. It uses goleak with a longer timeout: goleak waits
// less than half a second, but on a busy machine the goroutines of servers and client libraries take longer to end.
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

// timeout is how long goroutines may take to end.
const timeout = 15 * time.Second

// Main runs the tests of a package and exits, with a failure if goroutines are left.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m}, options...)
}

// None fails a test if goroutines are left that the options do not exclude.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(options...); err != nil {
		t.Error(err)
	}
}

// patient is a testing.M that waits for goroutines to end.
type patient struct{ m *testing.M }

func (p patient) Run() int {
	code := p.m.Run()
	if code == 0 {
		_ = find() // goleak's own check follows
	}
	return code
}

func find(options ...goleak.Option) (err error) {
	for deadline := time.Now().Add(timeout); ; {
		if err = goleak.Find(options...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
