package serve

import "testing"

// TestCallListCloses checks that a closed list takes no call that Serve would not wait for.
func TestCallListCloses(t *testing.T) {
	var l callList
	c := &call{s: &service{}}
	if added, closed := l.add(c, 1); !added || closed {
		t.Errorf("an open list: added %v, closed %v", added, closed)
	}
	l.leave(c)
	l.close()
	if left := l.remove(c); left != 0 {
		t.Errorf("%d calls are left", left)
	}
	if added, closed := l.add(&call{s: &service{}}, 1); added || !closed || l.len() != 0 {
		t.Errorf("a closed list: added %v, closed %v, %d calls", added, closed, l.len())
	}
}
