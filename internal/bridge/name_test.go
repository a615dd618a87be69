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

// refusesSecondBridge checks that a second bridge with the same name does not start. The first one has 1.5 seconds to
// respond to its ping; on a machine that is busy for that long, it is tried again.
func (h *host) refusesSecondBridge() {
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
	// If all pings were lost, the two compare their names, with another text.
	if err == nil || !strings.Contains(err.Error(), `"b1" is already running`) && !strings.Contains(err.Error(), "another bridge named") {
		h.t.Errorf("a second bridge of the name: %v", err)
	}
}

// TestNameInUse: the first ping, or its response, may be lost.
func TestNameInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	received := 0
	_, err := h.nc.Subscribe("ext.control.b1", func(m *nats.Msg) {
		if received++; received > 1 {
			m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	h.refusesSecondBridge()
}

// otherBridge is another bridge with the same name. The first three pings that it receives are lost; it responds to
// later ones unless its run is empty.
type otherBridge struct {
	nc  *nats.Conn
	run string
	at  string // the time of its start

	mu       sync.Mutex
	received int
}

func (r *otherBridge) appear(t *testing.T) {
	_, err := r.nc.Subscribe("ext.control.b1", func(m *nats.Msg) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.received++; r.received > 3 && r.run != "" {
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

func (r *otherBridge) pings() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received
}

const longAgo, inTheFuture = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

// TestNewerBridgeExits: a bridge that detects an older one with its name exits, whichever of them sent the ping.
func TestNewerBridgeExits(t *testing.T) {
	t.Parallel()
	for name, pings := range map[string]bool{"it sends the ping": false, "it receives the ping": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			r := &otherBridge{nc: h.other(), at: longAgo}
			if !pings {
				r.run = "other"
			}
			r.appear(t)
			b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
			done := make(chan error, 1)
			go func() { done <- b.Run(t.Context()) }() // ends when the bridge exits
			if pings {
				eventually(t, "its pings were lost", func() bool { return r.pings() >= 4 }, nil)
				request(r.nc, "ext.control.b1", "ping", `{"run":"other","since":"`+longAgo+`"}`)
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), `another bridge named "b1" has been running on this mesh since 2020`) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// TestOlderBridgeStays: a bridge that detects a newer one keeps running, and publishes its inventory again afterwards.
func TestOlderBridgeStays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := &otherBridge{nc: h.other(), at: inTheFuture, run: "other"}
	r.appear(t)
	f := follow(t, r.nc)
	ctx, cancel := context.WithCancel(t.Context())
	b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with cancel
	f.fulls(1, "the first inventory")
	eventually(t, "it has sent three pings", func() bool { return r.pings() >= 6 }, nil)
	request(r.nc, "ext.control.b1", "ping", `{"run":"other","since":"`+inTheFuture+`"}`)
	f.fulls(2, "the inventory after the other bridge's")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestTwoBridgesAtOnce starts two bridges with the same name at the same time: one of them keeps running.
func TestTwoBridgesAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	done := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		b := bridge.New(h.other(), bridge.Config{Name: "b1", Settings: config.Default(), StateDir: t.TempDir()})
		go func() { done <- b.Run(ctx) }() // ends with cancel, or when the bridge exits
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), `bridge named "b1"`) {
		t.Errorf("the bridge that exits: %v", err)
	}
	if got := h.control("ping", "{}"); !strings.Contains(got, `"run":"`) {
		t.Errorf("the bridge that stays: %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the bridge that stayed: %v", err)
	}
}
