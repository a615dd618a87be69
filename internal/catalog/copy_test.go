package catalog

import (
	"maps"
	"slices"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

func put(key string, seq uint64, time int64) Change {
	return Change{Key: key, At: Stamp{seq, time}, Value: []byte("{}")}
}

func TestStep(t *testing.T) {
	var c Copy
	if got := c.Step(Stamp{1, 100}); got != Next {
		t.Errorf("the first message of an empty bucket: %d", got)
	}
	c.Put(put("state.a", 7, 107))
	for at, want := range map[Stamp]Step{
		{8, 108}: Next, {9, 109}: Gap, {7, 107}: Old, {3, 103}: Old,
		{3, 200}: Other, {7, 200}: Other, {7, 50}: Other, // of a bucket that was recreated, later or earlier by its server's clock
	} {
		if got := c.Step(at); got != want {
			t.Errorf("%v after {7 107}: %d, want %d", at, got, want)
		}
	}
	c.Reach(Stamp{9, 109}) // the messages 8 and 9 were purged
	if got := c.Step(Stamp{10, 110}); got != Next {
		t.Errorf("the message after purged ones: %d", got)
	}
}

func TestPut(t *testing.T) {
	var c Copy
	for _, tt := range []struct {
		what           string
		ch             Change
		newer, existed bool
	}{
		{"a new key", put("a", 5, 5), true, false},
		{"an older value", put("a", 4, 4), false, true},
		{"the same value", put("a", 5, 5), false, true},
		{"an older deletion", Change{Key: "a", At: Stamp{3, 3}}, false, true},
		{"a newer value", put("a", 6, 6), true, true},
		{"a deletion", Change{Key: "a", At: Stamp{7, 7}}, true, true},
		{"what a replica that is behind has of a deleted key", put("a", 6, 6), false, false},
		{"the deletion of a key that does not exist", Change{Key: "b", At: Stamp{8, 8}}, true, false},
	} {
		if newer, existed := c.Put(tt.ch); newer != tt.newer || existed != tt.existed {
			t.Errorf("%s: newer %t, existed %t", tt.what, newer, existed)
		}
	}
	if keys := maps.Collect(c.All()); len(keys) != 0 || c.Last() != (Stamp{8, 8}) {
		t.Errorf("it has %v up to %v", keys, c.Last())
	}
}

// TestMissing: a snapshot that lacks a key deletes it, unless the key is newer than the snapshot or is kept because the bucket
// was recreated.
func TestMissing(t *testing.T) {
	var c Copy
	c.Put(put("old", 3, 3))
	c.Put(put("stays", 4, 4))
	c.Put(put(wire.KeyLease, 5, 5))
	c.Put(put("newer", 9, 9))
	snapshot := map[string]Stamp{"stays": {4, 4}, wire.KeyLease: {8, 8}}
	missing := func(keepOld bool) (keys []string) {
		for _, ch := range c.Missing(snapshot, Stamp{8, 8}, keepOld) {
			if !ch.Deleted() || ch.At != (Stamp{8, 8}) {
				t.Errorf("%+v is not a deletion at the end of the snapshot", ch)
			}
			keys = append(keys, ch.Key)
		}
		slices.Sort(keys)
		return keys
	}
	if got := missing(false); !slices.Equal(got, []string{"old"}) {
		t.Errorf("missing: %v", got)
	}
	c.Replace(snapshot)
	if got := missing(true); got != nil {
		t.Errorf("missing, with what an earlier stream had kept: %v", got)
	}
	if got := missing(false); !slices.Equal(got, []string{"newer", "old"}) {
		t.Errorf("missing in another stream: %v", got)
	}
}

// TestDiffersAfterClockChange: a server whose clock was set back still has the same stream.
func TestDiffersAfterClockChange(t *testing.T) {
	var c Copy
	for _, ch := range []Change{put("state.a", 5, 500), put("state.b", 6, 600), put("registry.lease", 7, 100)} {
		c.Put(ch)
	}
	for lease, want := range map[Stamp]bool{{7, 100}: false, {8, 110}: false, {4, 200}: true} {
		snapshot := map[string]Stamp{"state.a": {5, 500}, "state.b": {6, 600}, "registry.lease": lease}
		if got := c.Differs(snapshot, lease); got != want {
			t.Errorf("with the lease %v: another stream is %t", lease, got)
		}
	}
}
