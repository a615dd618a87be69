package natstest

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// Example returns a testing.TB for Start in an Example function, which has none. A failure is a panic. The example calls
// stop at its end, which ends what was started.
func Example() (t testing.TB, stop func()) {
	e := &example{}
	return e, func() {
		for _, end := range slices.Backward(e.ends) {
			end()
		}
	}
}

type example struct {
	testing.TB // nil: this package uses the methods below only
	ends       []func()
}

func (e *example) Helper()                      {}
func (e *example) Cleanup(end func())           { e.ends = append(e.ends, end) }
func (e *example) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (e *example) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func (e *example) TempDir() string {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	e.Cleanup(func() { _ = os.RemoveAll(dir) }) // a directory that is left in /tmp does not fail an example
	return dir
}
