package catalog

import (
	"iter"
	"maps"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// Copy records which messages of the bucket a follower has received. It keeps no values and does no I/O. It is not safe for
// concurrent use.
//
// Sequences are contiguous over the whole bucket, so a gap is a lost event. A purge makes no gap and is not republished; it
// shows in the number of messages (see Purged).
type Copy struct {
	last    Stamp            // the newest message
	keys    map[string]Stamp // the last message of each key that exists
	markers map[string]Stamp // of deleted keys, as long as their markers are certainly in the bucket
}

// Step is the relation of a message to the messages in a Copy.
type Step int

// The steps.
const (
	Next  Step = iota // it is the next message
	Old               // the copy has it, or a later one
	Gap               // messages before it are missing
	Other             // it is from another stream: the bucket was recreated
)

// Step returns how a message follows those in the copy.
func (c *Copy) Step(at Stamp) Step {
	switch {
	case at.Seq <= c.last.Seq && at.Time > c.last.Time, at.Seq == c.last.Seq && at.Time != c.last.Time:
		// A message with a lower sequence and a later time cannot be from the same stream, nor can two messages have one
		// sequence.
		return Other
	case at.Seq <= c.last.Seq:
		return Old
	case at.Seq == c.last.Seq+1:
		return Next
	}
	return Gap
}

// BehindTries limits how often a follower reads again because an event is newer than the answer to its read. Replicas catch up
// within that; an event that is forged, or of another stream, must not keep a follower busy.
const BehindTries = 5

// Last returns the newest message of the copy.
func (c *Copy) Last() Stamp { return c.last }

// Of returns the message of a key; ok is false if the key does not exist. A zero Stamp is one from an earlier stream.
func (c *Copy) Of(key string) (at Stamp, ok bool) {
	at, ok = c.keys[key]
	return at, ok
}

// Put adds a message. It returns whether the message is newer than the one that the copy has of its key, and whether the
// key existed.
func (c *Copy) Put(ch Change) (newer, existed bool) {
	if c.keys == nil {
		c.keys, c.markers = map[string]Stamp{}, map[string]Stamp{}
	}
	if ch.At.Seq > c.last.Seq {
		c.last = ch.At
	}
	at, existed := c.keys[ch.Key]
	if existed && at.Seq >= ch.At.Seq {
		return false, true
	}
	if c.markers[ch.Key].Seq >= ch.At.Seq { // a replica that is behind has sent a key that was deleted
		return false, false
	}
	if ch.Deleted() {
		delete(c.keys, ch.Key)
		c.markers[strings.Clone(ch.Key)] = ch.At
		return true, existed
	}
	delete(c.markers, ch.Key)
	c.keys[strings.Clone(ch.Key)] = ch.At
	return true, existed
}

// Reach notes that the copy has every message up to at that still exists: the last ones may have been purged.
func (c *Copy) Reach(at Stamp) {
	if at.Seq > c.last.Seq {
		c.last = at
	}
}

// Differs reports whether a snapshot that ends with through is from another stream than some of the copy. The copy may
// contain messages of both: a tail that is read when the bucket was just recreated ends with a message of the new one.
func (c *Copy) Differs(snapshot map[string]Stamp, through Stamp) bool {
	if c.last == (Stamp{}) {
		return false
	}
	for key, at := range snapshot {
		if have, ok := c.keys[key]; ok && have == at {
			continue // the clock of the server may have been set back since
		}
		if c.Step(at) == Other {
			return true
		}
	}
	for key, at := range c.keys {
		there := through // a key that the snapshot lacks was deleted before its end
		if s, ok := snapshot[key]; ok {
			there = s
		}
		if at.Seq >= there.Seq && at.Time < there.Time {
			return true
		}
	}
	return false
}

// Replace prepares for a snapshot of another stream: no message of the copy counts as newer than one of the snapshot. The
// keys remain until Put and Missing have compared them, so that only differences are reported.
func (c *Copy) Replace(snapshot map[string]Stamp) {
	c.last = Stamp{}
	clear(c.markers)
	for key, at := range c.keys {
		if s, ok := snapshot[key]; !ok || s != at {
			c.keys[key] = Stamp{}
		}
	}
}

// Missing returns the deletions of the keys that a whole snapshot lacks. Keys that changed after the snapshot remain, and so
// do keys of an earlier stream if keepOld is set. It also drops the markers up to through: they are in the snapshot if they still
// exist.
func (c *Copy) Missing(snapshot map[string]Stamp, through Stamp, keepOld bool) (gone []Change) {
	maps.DeleteFunc(c.markers, func(_ string, at Stamp) bool { return at.Seq <= through.Seq })
	for key, at := range c.keys {
		if at == (Stamp{}) && keepOld {
			continue
		}
		if _, ok := snapshot[key]; !ok && at.Seq < through.Seq {
			gone = append(gone, Change{Key: key, At: through})
		}
	}
	return gone
}

// DropMarker removes the marker of a key that a snapshot lacks: the bucket has none.
func (c *Copy) DropMarker(key string) { delete(c.markers, key) }

// markerAge is how long the marker of a deleted key is certainly in the bucket. Registries configure twice as long.
const markerAge = 5 * time.Minute

// Purged reports whether a bucket cannot contain everything that the copy has: it has too few messages, or its first one is
// too new. Each key has one message, its value or its deletion marker. newest is the newest message of the bucket.
func (c *Copy) Purged(first Stamp, messages int, newest Stamp) bool {
	want := 0
	for _, at := range c.keys {
		if at == (Stamp{}) {
			continue
		}
		if want++; at.Seq < first.Seq {
			return true
		}
	}
	for key, at := range c.markers {
		if newest.Time-at.Time > int64(markerAge) {
			delete(c.markers, key)
		} else {
			want++
		}
	}
	return messages < want
}

// Own reports whether a key is the registries' own: the lease and the epoch are not part of what the catalog lists.
func Own(key string) bool { return key == wire.KeyLease || key == wire.KeyEpoch }

// All returns the keys of the copy with their messages, in no order.
func (c *Copy) All() iter.Seq2[string, Stamp] { return maps.All(c.keys) }
