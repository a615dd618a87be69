package mesh

import (
	"maps"
	"testing"
	"time"
)

// TestCatalogTailOfAnotherBucket: a bucket is made anew while a follower is away, and gets further than the old one had,
// before the follower reads what it takes for the old one's tail. The newest message is of the new bucket then; the whole
// that is read next, since the connection was away, must not be taken for a later state of the same. (Seed
// 16073074220713356681 of TestCatalogRandomHistory was that.)
func TestCatalogTailOfAnotherBucket(t *testing.T) {
	at := func(bucket int, seq uint64) stamp { return stamp{seq, int64(bucket)*1e9 + int64(seq)} }
	put := func(bucket int, seq uint64, key string) change {
		return change{key: key, at: at(bucket, seq), value: []byte(`{"state":"ready"}`)}
	}
	del := func(bucket int, seq uint64, key string) change { return change{key: key, at: at(bucket, seq)} }
	for _, tt := range []struct {
		name  string
		old   []change
		tail  []change // of the new bucket, as far as it is behind the old one's end
		whole []change // the new bucket
		other bool     // watchers have to begin anew
	}{
		{"an older message of a key", []change{put(1, 39, "state.a")}, []change{put(2, 40, "state.b")},
			[]change{put(2, 19, "state.a"), put(2, 40, "state.b")}, true},
		{"an older deletion", []change{put(1, 39, "state.a")}, []change{put(2, 40, "state.b")},
			[]change{del(2, 19, "state.a"), put(2, 40, "state.b")}, true},
		{"the same number", []change{put(1, 39, "state.a")}, []change{put(2, 40, "state.b")},
			[]change{put(2, 39, "state.a"), put(2, 40, "state.b")}, true},
		{"a key that is not there", []change{put(1, 39, "state.a"), put(1, 45, "state.b")}, nil,
			[]change{put(2, 40, "state.c")}, true},
		{"a key that is not there, and a newer end", []change{put(1, 39, "state.a")}, []change{put(2, 40, "state.b")},
			[]change{put(2, 40, "state.b")}, false}, // the same comes of it either way
		{"newer messages only", []change{put(1, 39, "state.a")}, []change{put(2, 40, "state.a")},
			[]change{put(2, 40, "state.a")}, false},
		{"the same bucket", []change{put(1, 39, "state.a"), put(1, 40, "state.b")}, []change{put(1, 41, "state.c")},
			[]change{put(1, 39, "state.a"), put(1, 41, "state.c")}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCatalog(nil, CatalogOptions{})
			c.takeAll(tt.old, tt.old[len(tt.old)-1].at, "")
			c.take(tt.tail, time.Now())
			w := &watcher{pending: map[string]Event{}, wake: make(chan struct{}, 1)}
			c.watchers[w] = struct{}{}
			c.takeAll(tt.whole, tt.whole[len(tt.whole)-1].at, "")
			want := map[string]stamp{}
			for _, ch := range tt.whole {
				if ch.value != nil {
					want[ch.key] = ch.at
				}
			}
			if !maps.Equal(c.data.stamps, want) {
				t.Errorf("it has %v, the bucket %v", c.data.stamps, want)
			}
			if len(c.All()) != len(want) {
				t.Errorf("%d extensions of %d", len(c.All()), len(want))
			}
			if _, synced := w.pending[""]; synced != tt.other {
				t.Errorf("taken for another bucket: %t", synced)
			}
		})
	}
}

// TestCatalogTailWithAnotherID: a tail with another catalog's epoch in it has the whole read, and all that was in goes.
func TestCatalogTailWithAnotherID(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	c := NewCatalog(nc, CatalogOptions{})
	began := time.Now()
	old := change{key: "state.old", at: stamp{7, began.UnixNano()}, value: []byte(`{"state":"ready"}`)}
	c.takeAll([]change{old}, old.at, "the old one")
	onlyMessage(t, nc, c, KeyEpoch, "8", func() time.Time { return began.Add(time.Second) }, `{"catalog_id":"the new one"}`)
	if err := c.loadTail(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.data.id != "the new one" || len(c.data.stamps) != 0 || len(c.All()) != 0 {
		t.Errorf("of %q it has %v", c.data.id, c.data.stamps)
	}
}
