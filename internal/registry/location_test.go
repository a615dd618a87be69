package registry

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestBridgeRestarts: a bridge is killed and restarts under the same name. The catalog shows the host as lost, with
// time and reason, and then as ready again. The instances of the earlier run are not shown next to the new ones,
// where they would hide that the extension has failed.
func TestBridgeRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		one := b.bridge("one", "r1")
		old := b.ext("weather", "1.0.0", "old", "get").on(one)
		old.up()
		b.await("it is up", func() bool { return b.instances("weather") == "old ready" && one.is(heartbeat.Ready)() })
		up := one.doc()

		one.kill()
		old.silence()
		start := time.Now()
		b.await("the host is lost", one.is(heartbeat.Lost))
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("shown after %v", d)
		}
		b.await("its extension is lost", func() bool { return b.instances("weather") == "old lost" })
		if h := one.doc(); h.Reason != "is gone" || !h.Since.Equal(up.Since) || !h.StateSince.After(up.StateSince) {
			t.Errorf("host: %+v, was %+v", h, up)
		}

		e := b.ext("weather", "1.0.0", "new", "get")
		again := b.bridge("one", "r2", e.entry("one", heartbeat.Failed))
		e.on(again)
		b.await("the host is back", again.is(heartbeat.Ready))
		b.await("only the new instance shows", func() bool { return b.instances("weather") == "new failed" })
		if s := b.state("weather").State; s != heartbeat.Failed {
			t.Errorf("it is %s", s)
		}
		e.heartbeat(heartbeat.Ready)
		b.await("it is ready", b.is("weather", heartbeat.Ready))
	})
}

// TestBridgeRestartsAtOnce: a bridge has restarted before its end was noticed. Its first inventory removes the instances
// of its earlier run. Instances at another bridge stay. A standby that takes over does not bring the old ones back.
func TestBridgeRestartsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		slow := liveness.Config{Grace: 100}
		r, stop := b.registry(Config{Name: "r", Heartbeat: slow})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s", Heartbeat: slow})
		one, two := b.bridge("one", "r1"), b.bridge("two", "r1")
		old, other := b.ext("weather", "1.0.0", "old", "get").on(one), b.ext("weather", "1.0.0", "other", "get").on(two)
		old.up()
		other.up()
		b.await("they are up", func() bool {
			return b.instances("weather") == "old ready, other ready" && b.status(standby).Instances[heartbeat.Ready] == 2
		})
		one.kill()
		old.silence()
		start := time.Now()
		b.bridge("one", "r2", b.ext("weather", "1.0.0", "new", "get").entry("one", heartbeat.Ready))
		b.await("the old instance is gone", func() bool { return b.instances("weather") == "new ready, other ready" })
		if d := time.Since(start); d > time.Second {
			t.Errorf("gone after %v", d)
		}
		stop()
		b.leading(standby)
		time.Sleep(5 * time.Second) // fake time, in which nothing may change
		if got := b.instances("weather"); got != "new ready, other ready" {
			t.Errorf("the new leader shows %q", got)
		}
	})
}

// TestLostShowsHost: a registry that has restored an instance from the catalog logs on which host it was lost.
func TestLostShowsHost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, stop := b.registry(Config{})
		b.leading(r)
		one := b.bridge("one", "r1")
		b.ext("weather", "1.0.0", "n1", "get").on(one).up()
		b.await("it is up", func() bool { return b.is("weather", heartbeat.Ready)() && one.is(heartbeat.Ready)() })
		stop()
		one.kill()
		var log syncBuffer
		r, _ = b.registry(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		b.leading(r)
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		if want := `msg="extension lost" extension=weather instance=n1 host="host of one"`; !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, log.String())
		}
		if i := b.state("weather").Instances[0]; i.Host != "host of one" || i.Bridge != "one" {
			t.Errorf("instance: %+v", i)
		}
	})
}

// syncBuffer is a buffer that can be read while a log is written to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
