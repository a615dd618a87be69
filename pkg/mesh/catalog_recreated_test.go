package mesh

import (
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestCatalogTailOfAnotherBucket: a bucket is recreated while a follower is disconnected, and gets more messages than the
// old one had before the follower reads the tail. Its newest message is one of the new bucket then; the snapshot that it
// reads next must not be taken for a later state of the same bucket. (Seed 16073074220713356681 of TestCatalogRandomHistory
// found this.)
func TestCatalogTailOfAnotherBucket(t *testing.T) {
	at := func(bucket int, seq uint64) catalog.Stamp {
		return catalog.Stamp{Seq: seq, Time: int64(bucket)*1e9 + int64(seq)}
	}
	put := func(bucket int, seq uint64, key string) change {
		return newChange(key, at(bucket, seq), []byte(`{"state":"ready"}`))
	}
	del := func(bucket int, seq uint64, key string) change { return newChange(key, at(bucket, seq), nil) }
	for _, tt := range []struct {
		name  string
		old   []change
		tail  []change // of the new bucket, as far as it is behind the old one's end
		whole []change // the new bucket
		other bool     // watchers have to start again
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
			c.keep = 0
			c.takeAll(tt.old, tt.old[len(tt.old)-1].At, "")
			c.take(tt.tail, time.Now())
			w := &watcher{pending: map[string]Event{}, wake: make(chan struct{}, 1)}
			c.watchers[w] = struct{}{}
			c.takeAll(tt.whole, tt.whole[len(tt.whole)-1].At, "")
			want := map[string]catalog.Stamp{}
			for _, ch := range tt.whole {
				if ch.Value != nil {
					want[ch.Key] = ch.At
				}
			}
			if !maps.Equal(maps.Collect(c.data.copy.All()), want) {
				t.Errorf("it has %v, the bucket %v", maps.Collect(c.data.copy.All()), want)
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
	nc := natstest.Start(t, nil).Connect()
	c := NewCatalog(nc, CatalogOptions{})
	c.keep = 0
	began := time.Now()
	old := newChange("state.old", catalog.Stamp{Seq: 7, Time: began.UnixNano()}, []byte(`{"state":"ready"}`))
	c.takeAll([]change{old}, old.At, "the old one")
	onlyMessage(t, nc, c, wire.KeyEpoch, "8", func() time.Time { return began.Add(time.Second) }, `{"catalog_id":"the new one"}`)
	if err := c.loadTail(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, kept := c.data.copy.Of(old.Key); c.data.id != "the new one" || kept || len(c.All()) != 0 {
		t.Errorf("of %q it has %v", c.data.id, maps.Collect(c.data.copy.All()))
	}
}

// TestCatalogPurged: a purge is not republished, and writes after it leave no gap in the sequences. A follower detects it by
// the number of messages.
func TestCatalogPurged(t *testing.T) {
	t.Parallel()
	for name, purge := range map[string]func(b *catalogBed, s jetstream.Stream) error{
		"all of it, and one key is not written again": func(b *catalogBed, s jetstream.Stream) error {
			defer b.put("state.b", testState(heartbeat.Ready))
			return s.Purge(b.t.Context())
		},
		"one key": func(b *catalogBed, s jetstream.Stream) error {
			return s.Purge(b.t.Context(), jetstream.WithPurgeSubject("$KV.ext_catalog.state.a"))
		},
		"one key, after another was deleted": func(b *catalogBed, s jetstream.Stream) error {
			b.del("state.c")
			return s.Purge(b.t.Context(), jetstream.WithPurgeSubject("$KV.ext_catalog.state.a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCatalogBed(t)
			b.bucket()
			b.put("lease.registry", "{}")
			for _, key := range []string{"state.b", "state.a", "state.c", "state.b"} {
				b.put(key, testState(heartbeat.Ready))
			}
			s, err := natstest.JetStream(t, b.nc).Stream(t.Context(), "KV_ext_catalog")
			if err != nil {
				t.Fatal(err)
			}
			c := NewCatalog(b.connect(), CatalogOptions{})
			c.check, c.keep = 50*time.Millisecond, 100*time.Millisecond
			b.run(c)
			await(t, c, "c is ready", has("c", heartbeat.Ready))
			if err := purge(b, s); err != nil {
				t.Fatal(err)
			}
			b.compare(c)
		})
	}
}

// TestCatalogCheckFindsNothing: a follower that has what the bucket has reads it once.
func TestCatalogCheckFindsNothing(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	b.put("epoch.registry", "{}")
	b.put("lease.registry", "{}")
	for _, key := range []string{"state.a", "state.b", "state.c", "state.a"} {
		b.put(key, testState(heartbeat.Ready))
	}
	b.del("state.b")
	b.put("state.b", testState(heartbeat.Ready))
	b.del("state.c")
	c := NewCatalog(b.nc, CatalogOptions{})
	consistent := func(when string) {
		t.Helper()
		newest, _, err := c.reader.Last(t.Context(), catalog.AllKeys)
		if err != nil {
			t.Fatal(err)
		}
		first, messages, err := c.reader.Extent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if messages != 5 || c.data.copy.Purged(first, messages, newest.At) { // a, b, the marker of c, and the registries' two
			t.Errorf("%s: %d messages from %d on, and it has %+v", when, messages, first.Seq, c.data.copy)
		}
		if !c.data.copy.Purged(first, messages-1, newest.At) || !c.data.copy.Purged(newest.At, messages, newest.At) {
			t.Errorf("%s: a missing message is not noticed", when)
		}
	}
	if err := c.loadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	consistent("after the snapshot")
	b.put("state.a", testState(heartbeat.Lost))
	b.put("lease.registry", "{}")
	if err := c.loadTail(t.Context()); err != nil {
		t.Fatal(err)
	}
	consistent("after the tail")
}

// TestCatalogKeepsTheOldCopy: while a registry writes a bucket that was made again, tools are found as before. What it
// does not write goes after a while.
func TestCatalogKeepsTheOldCopy(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.a", testSpec("a", "1.0.0", "one"))
	b.put("spec.b", testSpec("b", "1.0.0", "two"))
	b.put("spec.gone", testSpec("gone", "1.0.0", "three"))
	c := NewCatalog(b.connect(), CatalogOptions{})
	c.keep = 3 * time.Second
	b.run(c)
	await(t, c, "all are there", func(c *Catalog) bool { return len(c.All()) == 3 })
	b.dropBucket()
	b.bucket()
	b.put("spec.a", testSpec("a", "2.0.0", "one"))
	await(t, c, "the new bucket is read", func(c *Catalog) bool {
		e, _ := c.Get("a")
		return e.Spec != nil && e.Spec.Version == "2.0.0"
	})
	for _, name := range []string{"ext_a_one", "ext_b_two", "ext_gone_three", "b/two"} {
		if _, _, err := c.Resolve(name); err != nil {
			t.Errorf("while the bucket is written: %v", err)
		}
	}
	b.put("spec.b", testSpec("b", "2.0.0", "two"))
	await(t, c, "what is not written goes", func(c *Catalog) bool { _, ok := c.Get("gone"); return !ok })
	b.compare(c)
}
