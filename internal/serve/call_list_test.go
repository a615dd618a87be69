package serve

import "testing"

// TestCallListCloses checks that a closed list takes no call that Serve would not wait for.
func TestCallListCloses(t *testing.T) {
	var l callList
	c := &call{s: &service{}}
	if !l.add(c, 1) || l.isClosed() {
		t.Error("an open list takes no call")
	}
	l.leave(c)
	l.close()
	if left := l.remove(c); left != 0 {
		t.Errorf("%d calls are left", left)
	}
	if l.add(&call{s: &service{}}, 1) || !l.isClosed() || l.len() != 0 {
		t.Errorf("a closed list has %d calls", l.len())
	}
}
