package registry

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// leading reports whether this replica writes: it holds the lease, and its view contains everything that earlier
// leaders wrote.
func (l *loop) leading() bool { return l.election.epoch != 0 && l.election.ready }

// bucketReady handles that the bucket exists: for the first time, or again.
func (l *loop) bucketReady(created time.Time) {
	l.election.trouble = ""
	if !l.view.synced || !l.view.created.Equal(created) {
		l.scans.resync()
	}
}

// elected handles that this replica has acquired the lease.
func (l *loop) elected(epoch uint64) {
	l.election.epoch, l.election.ready = epoch, false
	l.log.Info("elected", "name", l.cfg.Name, "epoch", epoch)
	l.takeOver()
}

// takeOver starts to write as soon as the view contains the epoch and this replica is known to receive messages.
func (l *loop) takeOver() {
	if l.election.epoch == 0 || l.election.ready || !l.selfCheck.received || !l.view.synced || l.view.last() < l.election.epoch {
		return
	}
	l.election.ready = true
	l.fleet.Elected(time.Now())
	poke(l.more)
	poke(l.election.tookOver)
	l.log.Info("leading", "name", l.cfg.Name, "epoch", l.election.epoch)
}

// deposed handles that the lease of an epoch is lost.
func (l *loop) deposed(epoch uint64) {
	if l.election.epoch != epoch {
		return
	}
	led := l.election.ready
	l.election.epoch, l.election.ready = 0, false
	l.pub.dirty, l.pub.urgent = map[string]bool{}, 0
	l.fleet.Deposed(time.Now())
	if led {
		l.log.Info("no longer leading", "name", l.cfg.Name, "epoch", epoch)
	}
}

// stepDown stops writing before the elector has found that the lease is lost.
func (l *loop) stepDown() {
	l.deposed(l.election.epoch)
	poke(l.election.stepDown)
}

// catalogEvent handles one republished change of the bucket.
func (l *loop) catalogEvent(key string, m *nats.Msg, now time.Time) {
	ch, err := l.bucket.reader().Event(m)
	if err != nil {
		l.refuse("catalog event", key, err)
		return
	}
	old := l.view.get(ch.Key)
	changed, gap := l.view.event(ch)
	if gap {
		l.scans.start()
	}
	if changed {
		l.events.Changed(ch.Key, old, l.view.get(ch.Key), ch.At.Seq, now)
		l.keyChanged(ch.Key)
	}
	if key == wire.KeyLease {
		if ch.Deleted() {
			poke(l.election.leaseFree)
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

// scanned handles the end of a scan.
func (l *loop) scanned(s *snapshot, err error) {
	again, pause := l.scans.again, time.Duration(0)
	l.scans.running, l.scans.again, l.scans.denied = false, false, ""
	l.traffic.Scans++
	switch {
	case err != nil:
		again, pause = true, flushInterval
		if errors.Is(err, errDenied) {
			pause, l.scans.denied = deniedPause, err.Error()
		}
		level := slog.LevelDebug
		if l.scans.failed(time.Now()) {
			level = slog.LevelWarn
		}
		l.log.Log(l.ctx, level, "cannot read the bucket", "error", err)
	default:
		l.scans.failing = time.Time{}
	}
	if again {
		l.view.lose()
		l.scans.after(pause)
		return
	}
	clear(l.pub.sent)
	old := l.view.values
	changed, gap := l.view.load(s)
	for _, key := range changed {
		l.events.Changed(key, old[key], l.view.get(key), l.view.last(), time.Now())
		l.keyChanged(key)
	}
	l.events.Start(time.Now(), l.view.get(wire.KeyLease)) // what was there before is not a change
	if gap {
		l.scans.behind()
	} else {
		l.scans.tries = 0
	}
	if l.view.get(wire.KeyLease) == nil {
		poke(l.election.leaseFree)
	} else {
		l.view.leaseSeen = time.Now() // an existing lease has been renewed within its TTL
	}
	l.takeOver()
}

// poke sends to c unless something is waiting there already.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
