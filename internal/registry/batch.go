package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/wire"
)

// A write is one message of a batch: a value for a key, or its deletion.
type write struct {
	key    string
	value  []byte
	delete bool
}

// The limits of a batch. The server refuses more than 1000 messages.
const (
	maxBatch      = 1000
	maxBatchBytes = 1 << 20
)

// commitTimeout is the time limit of a batch with this many writes and bytes. It is short for the few writes of an ordinary change, because a stream
// leader that hangs does not answer, and the next one is tried only after the timeout. A batch that is stored after
// its timeout does no harm: it has the same content, and the epoch of a later leader fences it.
func commitTimeout(writes, bytes int) time.Duration {
	return 2*time.Second + apiTimeout*time.Duration(writes)/maxBatch + time.Duration(bytes)*4*time.Microsecond
}

// errFenced means that another registry has been elected since: the epoch key has a newer revision.
var errFenced = errors.New("fenced: another registry leads")

// errNoBucket means that the bucket was deleted, as opposed to having no leader for a moment.
var errNoBucket = errors.New("the bucket was deleted")

// codeWrongSequence is the server's error code for an expected revision that does not match. 10164 is another one: an earlier write with
// the same condition, perhaps this registry's own, is not stored yet.
const codeWrongSequence = 10071

// commit publishes writes as one atomic batch (ADR-50): all of them are stored, in order, or none. The batch is
// refused with errFenced unless epoch is still the last revision of the epoch key. The condition on the first message
// covers the whole batch. After any other error the batch may have been stored. last is the revision of the last
// write.
func (b *bucket) commit(ctx context.Context, epoch uint64, writes []write) (last uint64, err error) {
	size := 0
	for _, w := range writes {
		size += len(w.value)
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout(len(writes), size))
	defer cancel()
	id := nuid.Next()
	for n, w := range writes {
		m := nats.NewMsg(b.subject(w.key))
		m.Data = w.value
		m.Header.Set("Nats-Batch-Id", id)
		m.Header.Set("Nats-Batch-Sequence", strconv.Itoa(n+1))
		if w.delete {
			m.Header.Set("KV-Operation", "PURGE")
			m.Header.Set("Nats-Rollup", "sub")
			m.Header.Set("Nats-TTL", markerTTL.String())
		}
		if n == 0 {
			m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(epoch, 10))
			m.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", b.subject(wire.KeyEpoch))
		}
		final := n == len(writes)-1
		if final {
			m.Header.Set("Nats-Batch-Commit", "1")
		}
		if n > 0 && !final {
			if err := b.nc.PublishMsg(m); err != nil {
				return 0, err
			}
			continue
		}
		if last, err = b.batchRequest(ctx, m); err != nil {
			return 0, fmt.Errorf("writing a batch: %w", err)
		}
	}
	return last, nil
}

// batchRequest sends the first or last message of a batch and waits for the server's reply, which is empty for the
// first message unless something failed.
func (b *bucket) batchRequest(ctx context.Context, m *nats.Msg) (seq uint64, err error) {
	answer, err := b.nc.RequestMsgWithContext(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		if _, gone := b.info(ctx); errors.Is(gone, jetstream.ErrStreamNotFound) {
			return 0, errNoBucket
		}
	}
	if err != nil || len(answer.Data) == 0 {
		return 0, err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, err
	}
	switch {
	case ack.Error == nil:
		return ack.Seq, nil
	case wrongSequence(ack.Error):
		return 0, fmt.Errorf("%w (server error: %w)", errFenced, ack.Error)
	}
	return 0, ack.Error
}

func wrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeWrongSequence
}

// ttlHeader formats a TTL as the server expects it, in whole seconds.
func ttlHeader(d time.Duration) string { return d.Truncate(time.Second).String() }
