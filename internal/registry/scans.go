package registry

import (
	"context"
	"time"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/pause"
)

// scans reads the whole bucket into the view when events may have been missed.
type scans struct {
	*workers
	bucket    *bucket
	view      *view
	running   bool // a scan is running, or paused before it begins
	again     bool
	tries     int       // scans in a row that lacked a received event; events of another stream are never in a scan
	verifying bool      // the bucket is being compared with the view
	denied    string    // why reading the bucket is denied; "" if it is not
	failing   time.Time // since when scans fail, or have been reported to fail; zero: they do not
}

// reportAfter is how long scans fail before that is logged: around an election they fail for a moment.
const reportAfter = 10 * time.Second

// failed reports whether to log that another scan has failed at now.
func (s *scans) failed(now time.Time) bool {
	if s.failing.IsZero() {
		s.failing = now
	}
	report := now.Sub(s.failing) >= reportAfter
	if report {
		s.failing = now
	}
	return report
}

// resync reads the whole bucket again.
func (s *scans) resync() {
	s.view.lose()
	s.start()
}

// start reads the whole bucket, one scan at a time.
func (s *scans) start() { s.after(0) }

// after reads the whole bucket after a pause.
func (s *scans) after(wait time.Duration) {
	if s.running {
		s.again = true
		return
	}
	s.running = true
	s.do(&s.unlimited, func(ctx context.Context) func(*loop) {
		if !pause.For(ctx, wait) {
			return func(*loop) {}
		}
		before := s.nc.LastError()
		read, err := s.bucket.scan(ctx)
		err = s.bucket.explain(before, err)
		return func(l *loop) { l.scanned(read, err) }
	})
}

// behind reads the bucket again because the scan lacks an event that was received: the replica that answered may be behind.
// After some tries it drops the event. If it was of this bucket, the next one makes a gap.
func (s *scans) behind() {
	if s.tries++; s.tries < catalog.BehindTries {
		s.after(flushInterval << (s.tries - 1))
		return
	}
	s.view.synced, s.view.pending = true, nil
}

// verifyTicks is the number of self-checks between two checks of the bucket: 5 s.
const verifyTicks = 10

// verify compares the view with the number of messages in the bucket, and reads the bucket again if it was purged.
func (s *scans) verify() {
	if !s.view.synced || s.running || s.verifying {
		return
	}
	s.verifying = true
	last := s.view.last()
	s.do(&s.unlimited, func(ctx context.Context) func(*loop) {
		info, err := s.bucket.info(ctx)
		return func(l *loop) {
			s.verifying = false
			// If there were events in between, the view and the stream's state are from different times.
			if err == nil && s.view.synced && s.view.last() == last && info.State.LastSeq == last && s.view.purged(info.State.FirstSeq, info.State.Msgs) {
				l.log.Warn("messages of the catalog are missing: it was purged; reading it again")
				s.resync()
			}
		}
	})
}
