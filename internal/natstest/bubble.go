package natstest

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// InBubble runs a test with a fake clock (testing/synctest), in which servers and clients can run. Nothing may be shared with the
// outside: pools, such as that of nats.go's timers, are emptied at the start and the end, and the server's ticking clock, which
// exists once per process, is kept running outside. A test in a bubble must not run in parallel with others.
func InBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	emptyPools := func() { runtime.GC(); runtime.GC() }
	emptyPools()
	defer emptyPools()
	ats.Register()
	defer ats.Unregister()
	synctest.Test(t, f)
}
