package fleet

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// testCatalog is an empty catalog.
type testCatalog struct{ gap bool }

func (c testCatalog) Synced() bool                    { return !c.gap }
func (c testCatalog) Get(string) (Record, bool)       { return Record{}, false }
func (c testCatalog) Each(func(key string, r Record)) {}

// fixture is a Fleet, a time, and what the Fleet has refused.
type fixture struct {
	*Fleet
	*testing.T
	at      time.Time
	refused map[string]int
	pending []Effect
}

func testFleet(t *testing.T) *fixture {
	return &fixture{Fleet: largeFleet(0), T: t, at: time.Unix(1_800_000_000, 0), refused: map[string]int{}}
}

// send processes a message, and what follows from it.
func (f *fixture) send(verb, name, data string) {
	f.Control(verb, name, []byte(data), f.at)
	f.settle()
}

func (f *fixture) settle() {
	for f.Settle(f.at) {
	}
	_, effects := f.Take()
	for _, e := range effects {
		if r, ok := e.(Refused); ok {
			f.refused[r.What]++
		} else {
			f.pending = append(f.pending, e)
		}
	}
}

func (f *fixture) announce(a wire.Announce) {
	f.Helper()
	data, err := json.Marshal(a)
	if err != nil {
		f.Fatal(err)
	}
	f.send("announce", a.ID, string(data))
}

// effectOf returns the last pending effect of a type.
func effectOf[E Effect](t *testing.T, f *fixture) (last E) {
	t.Helper()
	f.settle()
	found := false
	for _, e := range f.pending {
		if e, ok := e.(E); ok {
			last, found = e, true
		}
	}
	if !found {
		t.Fatalf("there is no %T", last)
	}
	return last
}
