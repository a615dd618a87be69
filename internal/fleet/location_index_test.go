package fleet

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// TestInstancesByBridge: the index of instances by bridge matches their locations after every change.
func TestInstancesByBridge(t *testing.T) {
	l := largeFleet(0)
	for range 10_000 {
		id := fmt.Sprintf("ext%d", rand.N(20))
		instance := fmt.Sprintf("i%d", rand.N(5))
		x := l.exts[id]
		if x == nil {
			x = newExtension(id, time.Now())
			l.exts[id] = x
		}
		switch rand.N(10) {
		case 0:
			l.drop(x)
		case 1, 2, 3:
			l.removeLocation(x, instance)
		default:
			l.setLocation(x, instance, &location{bridge: []string{"", "a", "b", "c"}[rand.N(4)]})
		}
	}
	want := locations(l)
	if !reflect.DeepEqual(l.instancesByBridge, want) {
		t.Errorf("got %v\nwant %v", l.instancesByBridge, want)
	}
	for _, x := range l.exts {
		l.drop(x)
	}
	if len(l.instancesByBridge) != 0 || len(l.exts) != 0 {
		t.Errorf("what was removed stays: %v", l.instancesByBridge)
	}
}
