package serve

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestForgottenCalls checks that a call is not kept if it was answered before its start was complete.
func TestForgottenCalls(t *testing.T) {
	var s cancels
	c := &call{s: &service{}, callID: "a"}
	c.s.calls.add(c, 1)
	s.forget(c) // its answer is on its way
	s.watch(c)  // the start of the call is completed only now
	c.s.calls.remove(c)
	if len(s.calls) != 0 {
		t.Error("the call is kept although it has ended")
	}
}

func TestEarlyCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s cancels
		cancelled := func(id string) bool {
			stopped := false
			c := &call{s: &service{}, callID: id, stop: func() { stopped = true }}
			s.watch(c)
			s.forget(c)
			return stopped
		}
		cancel := func(id string) { s.receive([]byte(fmt.Sprintf(`{"call_id":%q}`, id))) }
		for range 4 { // whatever the generation's age
			cancel("a")
			time.Sleep(cancelMemory - time.Millisecond)
			if !cancelled("a") || cancelled("b") {
				t.Fatal("within the time that an early cancel is remembered")
			}
			time.Sleep(time.Millisecond)
			if cancelled("a") {
				t.Fatal("remembered for too long")
			}
			time.Sleep(time.Second)
		}
		for i := range 100_000 { // a flood
			cancel(fmt.Sprint(i))
		}
		if n := len(s.early) + len(s.older); n > 2*maxEarly {
			t.Errorf("%d early cancels are kept", n)
		}
	})
}
