package registry

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestLeaseWatch: the time counts from the first answer with a revision to the sending of the last request.
func TestLeaseWatch(t *testing.T) {
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	lease := func(seq uint64, stored int) catalog.Change {
		return catalog.Change{At: catalog.Stamp{Seq: seq, Time: at(stored).UnixNano()}}
	}
	var s leaseWatch
	for _, c := range []struct {
		what       string
		read       catalog.Change
		asked, now int
		want       time.Duration
	}{
		{"for the first time", lease(7, 0), 100, 101, 0},
		{"at once again", lease(7, 0), 101, 102, 0},
		{"later, with a slow answer", lease(7, 0), 105, 109, 4 * time.Second},
		{"still", lease(7, 0), 111, 112, 10 * time.Second},
		{"renewed", lease(8, 10), 112, 113, 0},
		{"still that", lease(8, 10), 115, 116, 2 * time.Second},
		{"the same number in another bucket", lease(8, 115), 117, 118, 0},
		{"still that one", lease(8, 115), 120, 121, 2 * time.Second},
		{"another number of the same moment", lease(9, 115), 122, 123, 0},
	} {
		if got := s.observe(c.read, at(c.asked), at(c.now)); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestLeaseOverwritten: a lease that was overwritten and never expires is taken over after it has been unchanged for
// twice its TTL. The earlier leader has stopped by then, and its writes are refused.
func TestLeaseOverwritten(t *testing.T) {
	const ttl = 2 * time.Second
	for name, value := range map[string]string{
		"an answer":              `{"jsonrpc":"2.0","id":1,"result":{}}`,
		"no JSON":                "hello",
		"nothing":                "",
		"another one's":          `{"name":"old","instance":"gone","since":"2026-01-01T00:00:00Z"}`,
		"of a time that is none": `{"name":"old","instance":"gone","since":"soon"}`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				one, _ := b.registry(Config{Name: "one", LeaseTTL: ttl})
				b.leading(one)
				two, _ := b.registry(Config{Name: "two", LeaseTTL: ttl})
				b.await("the standby follows", func() bool { return b.status(two).Leader == "one" })
				epoch := b.status(one).Epoch

				put, err := b.bucket().js.PublishMsg(t.Context(), &nats.Msg{Subject: b.bucket().subject(wire.KeyLease), Data: []byte(value)})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				b.await("its holder steps down", func() bool { return !b.status(one).Leading })
				if d := time.Since(start); d > ttl {
					t.Errorf("it went on for %v", d)
				}
				leads := func() bool { return b.status(one).Leading || b.status(two).Leading }
				b.await("one of them leads", leads)
				if d := time.Since(start); d < 2*ttl || d > 7*ttl/2 {
					t.Errorf("taken over after %v", d)
				}
				now := max(b.status(one).Epoch, b.status(two).Epoch)
				if now <= put.Sequence || b.status(one).Leading && b.status(two).Leading {
					t.Errorf("epoch %d after %d, with the put at %d", now, epoch, put.Sequence)
				}
				if _, err := b.bucket().commit(t.Context(), epoch, []write{{key: "spec.stale", value: []byte("{}")}}); !errors.Is(err, errFenced) {
					t.Errorf("the old epoch's batch: %v", err)
				}
			})
		})
	}
}

// TestPurgedAndOverwritten: the bucket may have been purged, which is not republished, before the lease was
// overwritten.
func TestPurgedAndOverwritten(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{LeaseTTL: 2 * time.Second})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		e.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		s, err := b.bucket().js.Stream(t.Context(), b.bucket().stream())
		if err == nil {
			err = s.Purge(t.Context())
		}
		if err == nil {
			_, err = b.bucket().js.Publish(t.Context(), b.bucket().subject(wire.KeyLease), []byte("mine"))
		}
		if err != nil {
			t.Fatal(err)
		}
		b.await("all is there again", func() bool {
			s, _ := b.spec("weather")
			return len(s.Tools) == 1 && b.is("weather", heartbeat.Ready)()
		})
	})
}

// TestLeaseIsKept: a lease is not taken over while it is renewed, even at the last moment.
func TestLeaseIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		one, _ := b.registry(Config{Name: "one", LeaseTTL: 2 * time.Second})
		b.leading(one)
		two, _ := b.registry(Config{Name: "two", LeaseTTL: 2 * time.Second})
		b.await("the standby follows", func() bool { return b.status(two).Leader == "one" })
		epoch := b.status(one).Epoch
		<-time.After(time.Minute)
		if s := b.status(one); !s.Leading || s.Epoch != epoch {
			t.Errorf("after a minute: leading %v, epoch %d after %d", s.Leading, s.Epoch, epoch)
		}

		late := &elector{bucket: b.bucket(), me: holder{Instance: "late"}, ttl: 2 * time.Second, log: quiet}
		last, _, err := late.bucket.newest(t.Context(), wire.KeyLease)
		if err != nil {
			t.Fatal(err)
		}
		b.await("it is renewed", func() bool {
			r, _, err := late.bucket.newest(t.Context(), wire.KeyLease)
			return err == nil && r.At.Seq > last.At.Seq
		})
		if _, err := late.put(t.Context(), last.At.Seq); !wrongSequence(err) {
			t.Errorf("a lease that has moved was taken: %v", err)
		}
	})
}
