package registry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// fakeBridge is one run of a bridge: it reports, and answers pings until it is killed.
type fakeBridge struct {
	*bed
	name  string
	since time.Time
	sub   *nats.Subscription
}

func (b *bed) bridge(name string) *fakeBridge {
	b.Helper()
	f := b.muteBridge(name)
	f.report()
	return f
}

// muteBridge is a bridge that has not reported yet.
func (b *bed) muteBridge(name string) *fakeBridge {
	b.Helper()
	sub, err := b.nc.Subscribe(prefix.Control(name), func(m *nats.Msg) {
		if strings.Contains(string(m.Data), `"ping"`) {
			_ = m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) // fails only if the test closed the connection
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	b.flush(b.nc)
	return &fakeBridge{bed: b, name: name, since: time.Now().UTC(), sub: sub}
}

func (f *fakeBridge) report() {
	f.publish(prefix.HostReport(f.name), wire.Host{Bridge: f.name, Host: "host of " + f.name, Version: "1.0.0", Since: f.since, Extensions: []string{"weather"}})
}

func (f *fakeBridge) kill() {
	if err := f.sub.Unsubscribe(); err != nil {
		f.Fatal(err)
	}
	f.flush(f.nc)
}

// doc is the value of host.<bridge>.
func (f *fakeBridge) doc() (h wire.Host) {
	if v := f.get(fleet.HostKey(f.name)); v != nil {
		if err := json.Unmarshal(v, &h); err != nil {
			f.Error(err)
		}
	}
	return h
}

func (f *fakeBridge) is(s heartbeat.State) func() bool {
	return func() bool { return f.doc().State == s }
}

// on sets the bridge of an instance.
func (e *fakeExt) on(f *fakeBridge) *fakeExt {
	e.a.Bridge, e.a.Host = f.name, "host of "+f.name
	return e
}

// instances formats the list in state.<id> as "instance state".
func (b *bed) instances(id string) string {
	var out []string
	for _, i := range b.state(id).Instances {
		out = append(out, i.Instance+" "+string(i.State))
	}
	return strings.Join(out, ", ")
}

// TestBridgeRestarts: a bridge is killed and restarts under the same name. The catalog shows the host as lost, with
// time and reason, and then as ready again. The instances of the earlier run are not shown next to the new ones,
// where they would hide that the extension has failed.
func TestBridgeRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		one := b.bridge("one")
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

		again := b.bridge("one")
		b.await("the host is back", again.is(heartbeat.Ready))
		if got := b.instances("weather"); got != "old lost" {
			t.Errorf("the last instance was removed before there was another one: %q", got)
		}
		e := b.ext("weather", "1.0.0", "new", "get").on(again)
		e.announce()
		e.heartbeat(heartbeat.Failed)
		b.await("only the new instance shows", func() bool { return b.instances("weather") == "new failed" })
		if s := b.state("weather").State; s != heartbeat.Failed {
			t.Errorf("it is %s", s)
		}
		e.heartbeat(heartbeat.Ready)
		b.await("it is ready", b.is("weather", heartbeat.Ready))
	})
}

// TestBridgeReportsLate: the first report of a bridge arrives after the announcement of its instance. When the bridge
// has restarted, the catalog does not show the instance of its earlier run alongside the new one.
func TestBridgeReportsLate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{Heartbeat: liveness.Config{Grace: 100}})
		b.leading(r)
		one := b.muteBridge("one")
		old := b.ext("weather", "1.0.0", "old", "get").on(one)
		old.up()
		b.await("it is up", func() bool { return b.instances("weather") == "old ready" })
		time.Sleep(2 * time.Second) // fake time
		one.report()
		b.await("so is its bridge", one.is(heartbeat.Ready))
		one.kill()
		old.silence()
		b.await("it is lost", func() bool { return b.instances("weather") == "old lost" })
		again := b.bridge("one")
		e := b.ext("weather", "1.0.0", "new", "get").on(again)
		e.announce()
		e.heartbeat(heartbeat.Failed)
		b.await("only the new instance shows", func() bool { return b.instances("weather") == "new failed" })
	})
}

// TestBridgeRestartsAtOnce: a bridge has restarted before its end was noticed. The instances of its earlier run are
// found by pings, long before the grace period ends. Instances at another bridge, and those of the new run, stay. A
// standby that takes over does not bring the old ones back.
func TestBridgeRestartsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		slow := liveness.Config{Grace: 100}
		r, stop := b.registry(Config{Name: "r", Heartbeat: slow})
		b.leading(r)
		standby, _ := b.registry(Config{Name: "s", Heartbeat: slow})
		one, two := b.bridge("one"), b.bridge("two")
		old, other := b.ext("weather", "1.0.0", "old", "get").on(one), b.ext("weather", "1.0.0", "other", "get").on(two)
		b.await("they are up", func() bool {
			one.report() // the standby also requests announcements when it starts
			old.up()
			other.up()
			return b.instances("weather") == "old ready, other ready" && b.status(standby).Instances[heartbeat.Ready] == 2
		})
		one.kill()
		old.silence()
		e := b.ext("weather", "1.0.0", "new", "get").on(one)
		e.up() // before its bridge has reported
		start := time.Now()
		b.bridge("one")
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
		one := b.bridge("one")
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
