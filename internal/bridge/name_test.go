package bridge_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
)

// refusesASecond wants a second bridge of the name not to run. The first has 1.5 seconds to say that it is there; on a
// machine that stands still for as long, it is asked again.
func (h *host) refusesASecond() {
	h.t.Helper()
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Second)
		err = bridge.New(h.nc, bridge.Config{Name: "b1", Settings: config.Default(), StateDir: h.t.TempDir()}).Run(ctx)
		cancel()
		if err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), `"b1" is alive`) {
		h.t.Errorf("a second bridge of the name: %v", err)
	}
}

// TestNameIsTaken: also where the question, or the answer, is lost once.
func TestNameIsTaken(t *testing.T) {
	h := newHost(t)
	asked := 0
	_, err := h.nc.Subscribe("ext.control.b1", func(m *nats.Msg) {
		if asked++; asked > 1 {
			m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	h.refusesASecond()
}

// rival is another bridge of the name, which is there once three questions of the first one have been lost. It answers
// nobody that asks with an empty run.
type rival struct {
	nc  *nats.Conn
	run string
	at  string // since when it runs

	mu    sync.Mutex
	asked int
}

func (r *rival) appear(t *testing.T) {
	_, err := r.nc.Subscribe("ext.control.b1", func(m *nats.Msg) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.asked++; r.asked > 3 && r.run != "" {
			m.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"run":%q,"since":%q}}`, r.run, r.at))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (r *rival) heard() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

const longAgo, yetToCome = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

// TestGivesWay: a bridge that meets one which began before it ends, whichever of the two asks.
func TestGivesWay(t *testing.T) {
	for name, asks := range map[string]bool{"it asks": false, "it is asked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			r := &rival{nc: h.other(), at: longAgo}
			if !asks {
				r.run = "other"
			}
			r.appear(t)
			b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
			done := make(chan error, 1)
			go func() { done <- b.Run(t.Context()) }() // ends when it gives way
			if asks {
				eventually(t, "it has asked in vain", func() bool { return r.heard() >= 4 }, nil)
				ask(r.nc, "ext.control.b1", "ping", `{"run":"other","since":"`+longAgo+`"}`)
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), `another bridge named "b1" runs on this mesh, since 2020`) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// TestStays: a bridge that meets one which began after it goes on, and reports again when that one has gone.
func TestStays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := &rival{nc: h.other(), at: yetToCome, run: "other"}
	r.appear(t)
	reports, err := r.nc.SubscribeSync("ext.registry.host.b1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with cancel
	next := func(what string) {
		t.Helper()
		if _, err := reports.NextMsg(30 * time.Second); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	next("the first report")
	next("it comes again")
	eventually(t, "it has asked three times", func() bool { return r.heard() >= 6 }, nil)
	ask(r.nc, "ext.control.b1", "ping", `{"run":"other","since":"`+yetToCome+`"}`)
	next("what the other one may have put in its place")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestTwoAtOnce starts two of a name side by side: in the end one of them runs.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	done := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		b := bridge.New(h.other(), bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
		go func() { done <- b.Run(ctx) }() // ends with cancel, or gives way
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), `bridge named "b1"`) {
		t.Errorf("the one that gives way: %v", err)
	}
	if got := h.control("ping", "{}"); !strings.Contains(got, `"run":"`) {
		t.Errorf("the one that stays: %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the one that stayed: %v", err)
	}
}
