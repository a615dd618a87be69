package serve

import (
	"sync"
	"testing"
)

// TestCallListCloses checks that a closed list starts no handler that Serve would not wait for.
func TestCallListCloses(t *testing.T) {
	var l callList
	var handlers sync.WaitGroup
	if !l.enter(&handlers) {
		t.Error("an open list lets nobody in")
	}
	handlers.Done()
	l.close()
	handlers.Wait()
	if l.enter(&handlers) {
		t.Error("after the wait there is one more to wait for")
	}
}
