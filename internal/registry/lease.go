package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// holder is the value of the lease key and, with the catalog's id, of the epoch key.
type holder struct {
	Name      string    `json:"name"`
	Instance  string    `json:"instance"`
	Since     time.Time `json:"since"`
	CatalogID string    `json:"catalog_id,omitempty"`
}

// elector makes this replica the leader when nobody is. The lease is a key with a TTL that its holder renews;
// it only keeps replicas from fighting. What keeps a deposed leader from writing is the epoch: a key that every
// new leader writes once, under the guard of its lease, and whose revision fences every batch. The lease's own
// revision could not do that, since each renewal changes it. An epoch is above all others, whatever the lease says,
// for it is a sequence of the stream.
type elector struct {
	bucket   *bucket
	me       holder
	replicas int
	ttl      time.Duration
	log      *slog.Logger
	freed    <-chan struct{} // the lease was seen to be released or to expire, or the bucket to be gone
	step     <-chan struct{} // the loop found that it has been fenced
	online   <-chan struct{} // the connection was made anew
	report   func(func(*loop))
	refused  bool       // the loop was told that standing for election is denied
	others   standstill // the lease that somebody else holds
}

// standstill is a lease that did not move, and since when, by this replica's own clock.
type standstill struct {
	seq   uint64
	at    time.Time // the server's: a bucket that was made anew counts from 1 again
	since time.Time
}

// seen takes in the lease as it was read by a request that was sent at asked and is answered now. It returns for how
// long it has certainly not moved.
func (s *standstill) seen(r record, asked, now time.Time) time.Duration {
	if s.since.IsZero() || s.seq != r.seq || !s.at.Equal(r.at) {
		*s = standstill{r.seq, r.at, now}
	}
	return max(0, asked.Sub(s.since))
}

// growEvery is after how many renewals the leader looks after the bucket's configuration, over and over.
const growEvery = 30

// looksAfter reports whether it does so after n of them: at first soon, and then ever more seldom, for a cluster that has
// just formed may not know all of its servers yet.
func looksAfter(n int) bool { return n%growEvery == 0 || n < growEvery && n&(n-1) == 0 }

// leaseTTL is the default: in a cluster longer than an election of JetStream takes (7 s after a crash), or every
// one of those would depose the registry too.
func leaseTTL(clustered bool) time.Duration {
	if clustered {
		return 10 * time.Second
	}
	return 3 * time.Second
}

// run stands for election until ctx is done, and releases the lease then.
func (e *elector) run(ctx context.Context) {
	var created time.Time
	for ctx.Err() == nil {
		made := e.awaitBucket(ctx)
		if made.IsZero() {
			return
		}
		if !made.Equal(created) {
			created = made
			e.report(func(l *loop) { l.bucketReady(made) })
		}
		start := time.Now() // the lease runs from before the request was sent
		before := e.bucket.nc.LastError()
		seq, err := e.acquire(ctx)
		err = e.bucket.explain(before, err)
		switch {
		case err != nil && ctx.Err() == nil:
			e.stumbled(err)
			e.rest(ctx, err, 100*time.Millisecond)
			continue
		case e.refused:
			e.refused = false
			e.report(func(l *loop) { l.election.trouble = "" })
		}
		if seq == 0 {
			e.waitFree(ctx)
		} else {
			e.lead(ctx, seq, start, made)
		}
	}
}

// awaitBucket returns when the bucket is there, and says once that it waits for JetStream if it has to.
func (e *elector) awaitBucket(ctx context.Context) time.Time {
	pause, since := 50*time.Millisecond, time.Now()
	for told := false; ; {
		before := e.bucket.nc.LastError()
		created, err := e.bucket.ensure(ctx, e.replicas)
		err = e.bucket.explain(before, err)
		if err == nil {
			if told {
				e.log.Info("JetStream is back", "waited", time.Since(since).Round(time.Millisecond))
				e.report(func(l *loop) { l.election.trouble = "" })
			}
			return created
		}
		if !told && (time.Since(since) > time.Second || errors.Is(err, errDenied)) && ctx.Err() == nil {
			e.log.Warn("waiting for JetStream: the catalog cannot be written, beats are still heard", "error", err)
			e.report(func(l *loop) { l.election.trouble = err.Error() })
			told = true
		}
		if !e.rest(ctx, err, pause) {
			return time.Time{}
		}
		pause = min(2*pause, time.Second)
	}
}

// stumbled says why standing for election failed; a refusal is for somebody to mend, and shows as the registry's
// trouble with JetStream.
func (e *elector) stumbled(err error) {
	if !errors.Is(err, errDenied) {
		e.log.Debug("standing for election failed", "error", err)
		return
	}
	e.log.Warn("cannot stand for election", "error", err, "again_in", deniedPause)
	e.refused = true
	e.report(func(l *loop) { l.election.trouble = err.Error() })
}

// waitFree waits until the lease is seen to be free, and looks for itself once per TTL, since an event may be
// lost.
func (e *elector) waitFree(ctx context.Context) {
	t := time.NewTimer(e.ttl)
	defer t.Stop()
	select {
	case <-e.freed:
	case <-t.C:
	case <-ctx.Done():
	}
}

// acquire takes the lease if nobody holds it; seq is 0 if somebody does. One that has stood still for twice its TTL is
// nobody's, whatever it says: its holder would have renewed it and the server let it expire, but for an operator's put,
// say, which has no TTL. Should there be a leader after all, taking it fails if it has moved, and fences if it has not.
func (e *elector) acquire(ctx context.Context) (seq uint64, err error) {
	asked := time.Now()
	last, ok, err := e.bucket.newest(ctx, mesh.KeyLease)
	if err != nil {
		return 0, err
	}
	held := ok && !last.deleted && !e.mine(last)
	if held && e.others.seen(last, asked, time.Now()) < 2*e.ttl {
		return 0, nil
	}
	// Not even a marker: the bucket is new, or was purged, which is republished to nobody. And who wrote the lease may have
	// purged it before.
	if !ok || held {
		e.report((*loop).resync)
	}
	e.me.Since = time.Now().UTC()
	seq, err = e.put(ctx, last.seq)
	if wrongSequence(err) {
		return 0, nil // somebody was faster
	}
	if held && err == nil {
		e.log.Warn("took over a lease that nobody renews", "revision", last.seq, "value", cut(string(last.value), 200))
	}
	return seq, err
}

func (e *elector) mine(r record) bool {
	var h holder
	return !r.deleted && json.Unmarshal(r.value, &h) == nil && h.Instance == e.me.Instance
}

// put writes the lease over its revision last. Not by the KV API's Update, which would make the key permanent.
func (e *elector) put(ctx context.Context, last uint64) (seq uint64, err error) {
	value, err := json.Marshal(e.me)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(e.bucket.subject(mesh.KeyLease))
	m.Data = value
	m.Header.Set("Nats-TTL", ttlHeader(e.ttl))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(last, 10))
	ctx, cancel := context.WithTimeout(ctx, e.ttl/3)
	defer cancel()
	ack, err := e.bucket.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, fmt.Errorf("writing the lease: %w", err)
	}
	return ack.Sequence, nil
}

// lead writes the epoch and renews the lease until that fails for too long, the loop says that it is fenced, or
// ctx is done. The leader steps down a third of the TTL before the server could let the lease expire.
func (e *elector) lead(ctx context.Context, seq uint64, start time.Time, created time.Time) {
	before := e.bucket.nc.LastError()
	epoch, err := e.claim(ctx, seq, created)
	if err = e.bucket.explain(before, err); err != nil {
		e.log.Warn("won the lease but could not claim the epoch", "error", err)
		e.release(ctx, seq)
		e.rest(ctx, err, 100*time.Millisecond)
		return
	}
	select {
	case <-e.step: // said of an earlier term
	default:
	}
	e.report(func(l *loop) { l.elected(epoch) })
	defer e.report(func(l *loop) { l.deposed(epoch) })
	deadline := start.Add(e.ttl * 2 / 3)
	tick := time.NewTicker(e.ttl / 5)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n > 0 && looksAfter(n) { // a cluster may have got the servers for more replicas, an operator may have been at it
			e.lookAfter(ctx)
		}
		select {
		case <-ctx.Done():
			e.release(ctx, seq)
			return
		case <-e.step:
			return
		case <-tick.C:
		}
		sent := time.Now()
		next, err := e.renew(ctx, seq, deadline)
		switch {
		case err == nil:
			seq, deadline = next, sent.Add(e.ttl*2/3)
		case errors.Is(err, errFenced), !time.Now().Before(deadline), e.bucketGone(ctx):
			e.log.Warn("lost the lease", "error", err)
			return
		}
	}
}

// lookAfter makes the bucket's configuration right, if that can be done before the next renewal.
func (e *elector) lookAfter(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.ttl/5)
	defer cancel()
	if _, err := e.bucket.ensure(ctx, e.replicas); err != nil {
		e.log.Debug("cannot look after the bucket", "error", err)
	}
}

// bucketGone tells a bucket that was deleted from one that has no leader for a moment.
func (e *elector) bucketGone(ctx context.Context) bool {
	_, err := e.bucket.info(ctx)
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// claim writes the epoch under the guard of the lease's revision and returns the epoch's own.
func (e *elector) claim(ctx context.Context, lease uint64, created time.Time) (uint64, error) {
	h := e.me
	h.CatalogID = created.UTC().Format(time.RFC3339Nano)
	value, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.ttl/3)
	defer cancel()
	ack, err := e.bucket.js.Publish(ctx, e.bucket.subject(mesh.KeyEpoch), value, jetstream.WithRetryAttempts(0),
		jetstream.WithExpectLastSequenceForSubject(lease, e.bucket.subject(mesh.KeyLease)))
	if err != nil {
		return 0, fmt.Errorf("writing the epoch: %w", err)
	}
	return ack.Sequence, nil
}

// renew extends the lease. A renewal whose answer was lost has moved the revision on: the lease is read again and
// kept if it still is this replica's.
func (e *elector) renew(ctx context.Context, seq uint64, deadline time.Time) (uint64, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	next, err := e.put(ctx, seq)
	if !wrongSequence(err) {
		return next, err
	}
	last, ok, err := e.bucket.newest(ctx, mesh.KeyLease)
	if err != nil {
		return 0, err
	}
	if !ok || !e.mine(last) {
		return 0, errFenced
	}
	return e.put(ctx, last.seq)
}

// release gives the lease up so that the next leader need not wait for its TTL. It outlives ctx by a second.
func (e *elector) release(ctx context.Context, seq uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	m := nats.NewMsg(e.bucket.subject(mesh.KeyLease))
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set("Nats-Rollup", "sub")
	m.Header.Set("Nats-TTL", ttlHeader(markerTTL))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(seq, 10))
	if _, err := e.bucket.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0)); err != nil {
		e.log.Debug("could not release the lease; it will expire", "error", err)
	}
}
