package mesh

import (
	"fmt"
	"reflect"
	"testing"
)

// TestWatcherKeepsLittleRoom: what is not taken yet is all there, in order, and the room for very many events goes with
// them.
func TestWatcherKeepsLittleRoom(t *testing.T) {
	w := &watcher{pending: map[string]Event{}, wake: make(chan struct{}, 1)}
	room := func() uintptr { return reflect.ValueOf(w.pending).Pointer() }
	fill := func(n int) {
		for i := range n {
			w.add(Event{Revision: uint64(i + 1), Key: fmt.Sprintf("state.e%d", i), Op: opPut})
		}
	}
	for _, tt := range []struct {
		name   string
		events int
		synced bool // after them
		anew   bool
	}{
		{"few", fewPending, false, false},
		{"many", fewPending + 1, false, true},
		{"very many", 10_000, false, true},
		{"one after many", 1, false, false},
		{"many, and another bucket", 10_000, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := room()
			fill(tt.events)
			want := tt.events
			if tt.synced {
				w.add(Event{Op: opSynced})
				want = 1
			}
			got := w.take()
			if len(got) != want || len(w.take()) != 0 {
				t.Fatalf("took %d of %d events", len(got), want)
			}
			for i, ev := range got {
				if !tt.synced && ev.Revision != uint64(i+1) {
					t.Fatalf("event %d is revision %d", i, ev.Revision)
				}
			}
			if anew := room() != before; anew != tt.anew {
				t.Errorf("the room was made anew: %t, want %t", anew, tt.anew)
			}
		})
	}
}
