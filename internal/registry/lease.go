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

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
)

// holder is the value of the lease key. In the epoch key it also has the catalog's id.
type holder struct {
	Name      string    `json:"name"`
	Instance  string    `json:"instance"`
	Since     time.Time `json:"since"`
	CatalogID string    `json:"catalog_id,omitempty"`
}

// elector makes this replica the leader if no replica holds the lease. The lease is a key with a TTL that its holder renews; it
// keeps replicas from competing. What keeps a deposed leader from writing is the epoch: a key that every new leader
// writes once, on condition that its lease is unchanged. The revision of the epoch fences every batch. The lease's
// own revision could not, since each renewal changes it. Epochs increase whatever the lease contains, because a
// revision is a sequence number of the stream.
type elector struct {
	bucket     *bucket
	me         holder
	replicas   int
	setTTL     time.Duration // below a second: the default for the server
	ttl        time.Duration // of the present round
	log        *slog.Logger
	leaseFree  <-chan struct{} // the lease was released or has expired, or the bucket was deleted
	stepDown   <-chan struct{} // the loop found that this replica is fenced
	tookOver   <-chan struct{} // the loop has read the catalog and writes it
	report     func(func(*loop))
	existed    bool       // the bucket was there
	missing    time.Time  // since when the bucket is not there; zero: it is
	failing    time.Time  // since when the lease cannot be acquired; zero: it can be
	reported   bool       // the loop was notified why
	otherLease leaseWatch // the lease of another holder
}

func newElector(l *loop) *elector {
	return &elector{bucket: l.bucket, me: holder{Name: l.cfg.Name, Instance: l.instance}, replicas: l.cfg.Replicas,
		setTTL: l.cfg.LeaseTTL, log: l.log, leaseFree: l.election.leaseFree, stepDown: l.election.stepDown, tookOver: l.election.tookOver, report: l.report}
}

// leaseWatch is the last revision seen of another holder's lease, and since when it has been unchanged, by the local
// clock.
type leaseWatch struct {
	at    catalog.Stamp
	since time.Time
}

// observe records the lease as read by a request sent at sent and answered at now. It returns how long the lease has
// been unchanged for certain.
func (s *leaseWatch) observe(lease catalog.Change, sent, now time.Time) time.Duration {
	if s.since.IsZero() || s.at != lease.At {
		*s = leaseWatch{lease.At, now}
	}
	return max(0, sent.Sub(s.since))
}

// maintainEvery is the number of renewals between checks of the bucket's configuration.
const maintainEvery = 30

// maintenanceDue reports whether the leader checks the bucket's configuration after n renewals: often at first,
// because a cluster that has just formed may not have all of its servers yet.
func maintenanceDue(n int) bool { return n%maintainEvery == 0 || n < maintainEvery && n&(n-1) == 0 }

// leaseTTL is the default TTL of the lease. In a cluster it is longer than a JetStream leader election takes (7 s
// after a crash); otherwise each of those would also depose the registry's leader.
func leaseTTL(clustered bool) time.Duration {
	if clustered {
		return 10 * time.Second
	}
	return 3 * time.Second
}

// chooseTTL sets the TTL for the next term: the server may have joined a cluster. Without a connection that is not known.
func (e *elector) chooseTTL() {
	switch {
	case e.setTTL >= time.Second:
		e.ttl = e.setTTL
	case e.ttl == 0 || e.bucket.nc.IsConnected():
		e.ttl = leaseTTL(e.bucket.clustered())
	}
}

// run takes part in elections until ctx is done, and then releases the lease.
func (e *elector) run(ctx context.Context) {
	var created time.Time
	for ctx.Err() == nil {
		made := e.awaitBucket(ctx)
		if made.IsZero() {
			return
		}
		e.chooseTTL()
		if !made.Equal(created) {
			created = made
			e.report(func(l *loop) { l.bucketReady(made) })
		}
		start := time.Now() // the TTL may start as early as the sending of the request
		before := e.bucket.nc.LastError()
		seq, err := e.acquire(ctx)
		err = e.bucket.explain(before, err)
		switch {
		case err != nil && ctx.Err() == nil:
			e.acquireFailed(err)
			pauseAfter(ctx, err, 100*time.Millisecond)
			continue
		case e.reported:
			e.report(func(l *loop) { l.election.trouble = "" })
			fallthrough
		default:
			e.failing, e.reported = time.Time{}, false
		}
		if seq == 0 {
			e.waitFree(ctx)
		} else {
			e.lead(ctx, seq, start, made)
		}
	}
}

// recreateAfter is how long a bucket that was deleted is missing before it is created again. A NATS server that still deletes
// the stream then would be left with one that has no directory and acknowledges no message (docs/rough_edges.md).
const recreateAfter = time.Second

func (e *elector) ensureBucket(ctx context.Context) (created time.Time, err error) {
	create := !e.existed || !e.missing.IsZero() && time.Since(e.missing) >= recreateAfter
	created, err = e.bucket.ensure(ctx, e.replicas, create)
	switch {
	case err == nil:
		e.existed, e.missing = true, time.Time{}
	case errors.Is(err, jetstream.ErrStreamNotFound) && e.missing.IsZero():
		e.missing = time.Now()
	}
	return created, err
}

// awaitBucket returns when the bucket exists. It logs once if it has to wait for JetStream.
func (e *elector) awaitBucket(ctx context.Context) time.Time {
	pause, since := 50*time.Millisecond, time.Now()
	for logged := false; ; {
		before := e.bucket.nc.LastError()
		created, err := e.ensureBucket(ctx)
		err = e.bucket.explain(before, err)
		if err == nil {
			if logged {
				e.log.Info("JetStream is back", "waited", time.Since(since).Round(time.Millisecond).String())
				e.report(func(l *loop) { l.election.trouble = "" })
			}
			return created
		}
		if !logged && (time.Since(since) > time.Second || errors.Is(err, errDenied)) && ctx.Err() == nil {
			e.log.Warn("waiting for JetStream: the catalog cannot be written; heartbeats are still processed", "error", err)
			e.report(func(l *loop) { l.election.trouble = err.Error() })
			logged = true
		}
		if !pauseAfter(ctx, err, pause) {
			return time.Time{}
		}
		pause = min(2*pause, time.Second)
	}
}

// acquireFailed logs why the lease could not be acquired. An error that lasts needs an operator, so status shows it as
// JetStream trouble.
func (e *elector) acquireFailed(err error) {
	if e.failing.IsZero() {
		e.failing = time.Now()
	}
	switch {
	case time.Since(e.failing) < acquireGrace:
		e.log.Debug("cannot acquire the lease", "error", err)
		return
	case e.reported:
		e.log.Debug("cannot acquire the lease", "error", err)
	default:
		e.log.Warn("cannot acquire the lease: the catalog cannot be written; heartbeats are still processed", "error", err)
	}
	e.reported = true
	e.report(func(l *loop) { l.election.trouble = err.Error() })
}

// acquireGrace is how long acquiring the lease may fail, as it does while JetStream elects a leader, until that is reported.
const acquireGrace = 10 * time.Second

// waitFree waits until the lease looks free. Events can be lost, so it returns after one TTL at the latest.
func (e *elector) waitFree(ctx context.Context) {
	t := time.NewTimer(e.ttl)
	defer t.Stop()
	select {
	case <-e.leaseFree:
	case <-t.C:
	case <-ctx.Done():
	}
}

// acquire acquires the lease if it is free; seq is 0 if it is not. A lease that has been unchanged for twice its TTL
// counts as free whatever it contains: a holder would have renewed it, or the server would have let it expire. The
// exception is a value without a TTL, such as one that an operator wrote. If that lease has a leader after all, the
// write fails if the lease has changed, and fences the leader if it has not.
func (e *elector) acquire(ctx context.Context) (seq uint64, err error) {
	sent := time.Now()
	last, ok, err := e.bucket.newest(ctx, wire.KeyLease)
	if err != nil {
		return 0, err
	}
	held := ok && !last.Deleted() && !e.mine(last)
	if held && e.otherLease.observe(last, sent, time.Now()) < 2*e.ttl {
		return 0, nil
	}
	// Without even a marker the bucket is new or was purged, and a purge is not republished. A writer of an
	// unexpected lease may also have purged the bucket before.
	if !ok || held {
		e.report(func(l *loop) { l.scans.resync() })
	}
	e.me.Since = time.Now().UTC()
	seq, err = e.put(ctx, last.At.Seq)
	if wrongSequence(err) {
		return 0, nil // another replica was faster
	}
	if held && err == nil {
		e.log.Warn("took over a lease that its holder does not renew", "revision", last.At.Seq, "value", words.Clip(string(last.Value), 200))
	}
	return seq, err
}

func (e *elector) mine(lease catalog.Change) bool {
	var h holder
	return !lease.Deleted() && json.Unmarshal(lease.Value, &h) == nil && h.Instance == e.me.Instance
}

// put writes the lease over its revision last. It does not use the KV API's Update, which sets no TTL.
func (e *elector) put(ctx context.Context, last uint64) (seq uint64, err error) {
	value, err := json.Marshal(e.me)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(e.bucket.subject(wire.KeyLease))
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

// lead writes the epoch and renews the lease until that fails for too long, the loop finds that it is fenced, or ctx
// is done. The leader steps down a third of the TTL before the server could expire the lease.
func (e *elector) lead(ctx context.Context, seq uint64, start time.Time, created time.Time) {
	before := e.bucket.nc.LastError()
	epoch, err := e.claim(ctx, seq, created)
	if err = e.bucket.explain(before, err); err != nil {
		e.log.Warn("won the lease but could not claim the epoch", "error", err)
		e.release(ctx, seq)
		pauseAfter(ctx, err, 100*time.Millisecond)
		return
	}
	drain(e.stepDown) // from an earlier term
	drain(e.tookOver)
	e.report(func(l *loop) { l.elected(epoch) })
	defer e.report(func(l *loop) { l.deposed(epoch) })
	deadline := start.Add(e.ttl * 2 / 3)
	late := time.NewTimer(takeOverLimit)
	defer late.Stop()
	tick := time.NewTicker(e.ttl / 5)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n > 0 && maintenanceDue(n) { // more servers may have joined the cluster, or an operator may have changed the stream
			e.maintainBucket(ctx)
		}
		select {
		case <-ctx.Done():
			e.release(ctx, seq)
			return
		case <-e.stepDown:
			return
		case <-e.tookOver:
			late.Stop()
		case <-late.C:
			e.log.Warn("gave up the lease, because the catalog could not be read or followed; another registry may be able to", "within", takeOverLimit.String())
			e.report(func(l *loop) { l.deposed(epoch) })
			e.release(ctx, seq)
			pause.For(ctx, 3*e.ttl)
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

// drain empties a channel of notifications.
func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// takeOverLimit is how long a replica holds the lease before it has read the catalog. It is longer than one attempt to read
// a large bucket over a slow connection.
const takeOverLimit = 90 * time.Second

// maintainBucket corrects the bucket's configuration if that is possible before the next renewal.
func (e *elector) maintainBucket(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.ttl/5)
	defer cancel()
	if _, err := e.ensureBucket(ctx); err != nil {
		e.log.Debug("cannot check the bucket's configuration", "error", err)
	}
}

// bucketGone reports whether the bucket was deleted, as opposed to having no leader for a moment.
func (e *elector) bucketGone(ctx context.Context) bool {
	_, err := e.bucket.info(ctx)
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// claim writes the epoch on condition that the lease still has the given revision, and returns the epoch's revision.
func (e *elector) claim(ctx context.Context, lease uint64, created time.Time) (uint64, error) {
	h := e.me
	h.CatalogID = created.UTC().Format(time.RFC3339Nano)
	value, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.ttl/3)
	defer cancel()
	ack, err := e.bucket.js.Publish(ctx, e.bucket.subject(wire.KeyEpoch), value, jetstream.WithRetryAttempts(0),
		jetstream.WithExpectLastSequenceForSubject(lease, e.bucket.subject(wire.KeyLease)))
	if err != nil {
		return 0, fmt.Errorf("writing the epoch: %w", err)
	}
	return ack.Sequence, nil
}

// renew extends the lease. If the reply to an earlier renewal was lost, the revision is newer than seq: renew then
// reads the lease, and renews it if this replica still holds it.
func (e *elector) renew(ctx context.Context, seq uint64, deadline time.Time) (uint64, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	next, err := e.put(ctx, seq)
	if !wrongSequence(err) {
		return next, err
	}
	last, ok, err := e.bucket.newest(ctx, wire.KeyLease)
	if err != nil {
		return 0, err
	}
	if !ok || !e.mine(last) {
		return 0, errFenced
	}
	return e.put(ctx, last.At.Seq)
}

// release deletes the lease so that the next leader need not wait for its TTL. It may take until a second after ctx
// is done.
func (e *elector) release(ctx context.Context, seq uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	m := nats.NewMsg(e.bucket.subject(wire.KeyLease))
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set("Nats-Rollup", "sub")
	m.Header.Set("Nats-TTL", ttlHeader(markerTTL))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(seq, 10))
	if _, err := e.bucket.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0)); err != nil {
		e.log.Debug("could not release the lease; it will expire", "error", err)
	}
}
