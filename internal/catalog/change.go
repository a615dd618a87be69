package catalog

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Stamp identifies one message of the bucket's stream. If a bucket was deleted and created again, sequences start over, but
// time does not.
type Stamp struct {
	Seq  uint64
	Time int64 // of the server, in nanoseconds since 1970
}

// At returns the time of the message; the zero Time for the zero Stamp.
func (s Stamp) At() time.Time {
	if s == (Stamp{}) {
		return time.Time{}
	}
	return time.Unix(0, s.Time)
}

// Change is one message of the bucket: the new value of a key, or nil if the key was deleted.
type Change struct {
	Key   string
	At    Stamp
	Value []byte
}

// Deleted reports whether the change is the deletion of its key.
func (ch *Change) Deleted() bool { return ch.Value == nil }

// The headers that the server adds to a stored or republished message.
const (
	headerSubject  = "Nats-Subject"
	headerSequence = "Nats-Sequence"
	headerTime     = "Nats-Time-Stamp"
	headerMarker   = "Nats-Marker-Reason" // an expiry
	headerKVOp     = "KV-Operation"       // DEL or PURGE
)

// IsMarker reports whether a message with these headers is a deletion marker.
func IsMarker(h nats.Header) bool { return h.Get(headerKVOp) != "" || h.Get(headerMarker) != "" }

// parse reads a stored or republished message.
func parse(key string, m *nats.Msg) (Change, error) {
	seq, err := strconv.ParseUint(m.Header.Get(headerSequence), 10, 64)
	if err != nil {
		return Change{}, fmt.Errorf("catalog key %.100q: no %s", key, headerSequence)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerTime))
	if err != nil {
		return Change{}, fmt.Errorf("catalog key %.100q: no %s", key, headerTime)
	}
	ch := Change{Key: key, At: Stamp{seq, at.UnixNano()}}
	if !IsMarker(m.Header) {
		if ch.Value = m.Data; ch.Value == nil {
			ch.Value = []byte{}
		}
	}
	return ch, nil
}
