package registry

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestInstancesByBridge: the index of instances by bridge matches their locations after every change.
func TestResidents(t *testing.T) {
	l := largeLoop(0)
	for range 10_000 {
		id := fmt.Sprintf("ext%d", rand.N(20))
		instance := fmt.Sprintf("i%d", rand.N(5))
		x := l.exts[id]
		if x == nil {
			x = newExtension(id)
			l.exts[id] = x
		}
		switch rand.N(10) {
		case 0:
			l.drop(x)
		case 1, 2, 3:
			l.displaced(x, instance)
		default:
			l.placed(x, instance, &place{bridge: []string{"", "a", "b", "c"}[rand.N(4)]})
		}
	}
	want := residences(l)
	if !reflect.DeepEqual(l.residents, want) {
		t.Errorf("got %v\nwant %v", l.residents, want)
	}
	for _, x := range l.exts {
		l.drop(x)
	}
	if len(l.residents) != 0 || len(l.exts) != 0 {
		t.Errorf("what was removed stays: %v", l.residents)
	}
}
