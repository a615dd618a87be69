package registry

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// leading reports whether this replica writes: it holds the lease, and its view contains everything that earlier
// leaders wrote.
func (l *loop) leading() bool { return l.election.epoch != 0 && l.election.ready }

func (l *loop) elector() *elector {
	ttl := l.cfg.LeaseTTL
	if ttl < time.Second {
		ttl = leaseTTL(l.bucket.clustered())
	}
	return &elector{bucket: l.bucket, me: holder{Name: l.cfg.Name, Instance: l.instance}, replicas: l.cfg.Replicas,
		ttl: ttl, log: l.log, leaseFree: l.election.leaseFree, stepDown: l.election.stepDown, reconnected: l.election.reconnected, report: l.report}
}

// bucketReady handles that the bucket exists: for the first time, or again.
func (l *loop) bucketReady(created time.Time) {
	l.election.trouble = ""
	if !l.view.synced || !l.view.created.Equal(created) {
		l.resync()
	}
}

// resync reads the whole bucket again.
func (l *loop) resync() {
	l.view.lose()
	l.snapshot()
}

// elected handles that this replica has acquired the lease.
func (l *loop) elected(epoch uint64) {
	l.election.epoch, l.election.ready, l.election.since = epoch, false, time.Now()
	l.log.Info("elected", "name", l.cfg.Name, "epoch", epoch)
	l.takeOver()
}

// takeOver starts to write as soon as the view contains the epoch.
func (l *loop) takeOver() {
	if l.election.epoch == 0 || l.election.ready || !l.view.synced || l.view.last() < l.election.epoch {
		return
	}
	l.election.ready = true
	l.fleet.Elected(time.Now())
	l.again()
	l.log.Info("leading", "name", l.cfg.Name, "epoch", l.election.epoch)
}

// deposed handles that the lease of an epoch is lost.
func (l *loop) deposed(epoch uint64) {
	if l.election.epoch != epoch {
		return
	}
	l.election.epoch, l.election.ready = 0, false
	l.fleet.Deposed(time.Now())
	l.log.Info("no longer leading", "name", l.cfg.Name, "epoch", epoch)
}

// stepDown stops writing before the elector has found that the lease is lost.
func (l *loop) stepDown() {
	l.deposed(l.election.epoch)
	select {
	case l.election.stepDown <- struct{}{}:
	default:
	}
}

// catalogEvent handles one republished change of the bucket.
func (l *loop) catalogEvent(key string, m *nats.Msg, now time.Time) {
	ch, err := l.bucket.reader().Event(m)
	if err != nil {
		l.refuse("catalog event", key, err)
		return
	}
	changed, gap := l.view.event(ch)
	if gap {
		l.snapshot()
	}
	if changed {
		l.keyChanged(ch.Key)
	}
	if key == wire.KeyLease {
		if ch.Deleted() {
			l.checkLease()
		} else {
			l.view.leaseSeen = now
		}
	}
	l.takeOver()
}

// keyChanged handles a key that changed in the bucket, unless this replica wrote it. The writer may have been something
// else, such as an operator.
func (l *loop) keyChanged(key string) {
	sent, acknowledged := l.pub.sent[key]
	delete(l.pub.sent, key)
	now := l.view.get(key)
	if acknowledged && bytes.Equal(sent, now) {
		return
	}
	if kind, _, _ := strings.Cut(key, "."); section(kind) == "" {
		return
	}
	if value, mine := l.pub.inflight[key]; !mine || !bytes.Equal(value, now) {
		l.fleet.CatalogChanged(key, time.Now())
	}
}

func (l *loop) checkLease() {
	select {
	case l.election.leaseFree <- struct{}{}:
	default:
	}
}

// verifyTicks is the number of self-checks between two checks of the bucket: 5 s.
const verifyTicks = 10

// verify compares the view with the number of messages in the bucket, and reads the bucket again if it was purged.
func (l *loop) verify() {
	if !l.view.synced || l.election.scanning || l.election.verifying {
		return
	}
	l.election.verifying = true
	last := l.view.last()
	l.wg.Go(func() { // owned by the loop; ends with info's timeout
		info, err := l.bucket.info(l.ctx)
		l.report(func(l *loop) {
			l.election.verifying = false
			// If there were events in between, the view and the stream's state are from different times.
			if err == nil && l.view.synced && l.view.last() == last && info.State.LastSeq == last && l.view.purged(info.State.FirstSeq, info.State.Msgs) {
				l.log.Warn("messages of the catalog are missing: it was purged; reading it again")
				l.resync()
			}
		})
	})
}

// snapshot reads the whole bucket, one scan at a time.
func (l *loop) snapshot() { l.snapshotAfter(0) }

// snapshotAfter reads the whole bucket after a pause, which election.scanNow ends early.
func (l *loop) snapshotAfter(pause time.Duration) {
	if l.election.scanning {
		l.election.scanAgain = true
		return
	}
	paused, scanNow := context.WithTimeout(l.ctx, pause)
	l.election.scanning, l.election.scanNow = true, scanNow
	l.wg.Go(func() { // owned by the loop; ends with scan's timeout
		defer scanNow()
		<-paused.Done()
		if l.ctx.Err() != nil {
			return
		}
		before := l.nc.LastError()
		s, err := l.bucket.scan(l.ctx)
		err = l.bucket.explain(before, err)
		l.report(func(l *loop) { l.scanned(s, err) })
	})
}

func (l *loop) scanned(s *snapshot, err error) {
	again, pause := l.election.scanAgain, time.Duration(0)
	l.election.scanning, l.election.scanAgain, l.election.denied = false, false, ""
	l.traffic.Scans++
	switch {
	case errors.Is(err, errDenied):
		again, pause, l.election.denied = true, deniedPause, err.Error()
		l.log.Warn("cannot read the catalog", "error", err, "again_in", pause)
	case err != nil:
		again, pause = true, flushInterval
		l.log.Debug("cannot read the bucket", "error", err)
	}
	if again {
		l.view.lose()
		l.snapshotAfter(pause)
		return
	}
	clear(l.pub.sent)
	changed, gap := l.view.load(s)
	for _, key := range changed {
		l.keyChanged(key)
	}
	if gap {
		l.snapshot()
	}
	if l.view.get(wire.KeyLease) == nil {
		l.checkLease()
	} else {
		l.view.leaseSeen = time.Now() // an existing lease has been renewed within its TTL
	}
	l.takeOver()
}

// again makes the loop flush once more.
func (l *loop) again() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}
