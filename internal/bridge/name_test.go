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

// TestTwoOfAName: of two that start at once, and find nobody, the one that began later gives way.
func TestTwoOfAName(t *testing.T) {
	for since, gives := range map[string]bool{"2020-01-01T00:00:00Z": true, "2999-01-01T00:00:00Z": false} {
		t.Run(since, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.extension("one", `"here"`, "")
			var mu sync.Mutex
			asked := 0
			_, err := h.other().Subscribe("ext.control.b1", func(m *nats.Msg) { // the other one, which was not there yet
				mu.Lock()
				defer mu.Unlock()
				if asked++; asked > 3 {
					m.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"run":"other","since":%q}}`, since))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			reports, err := h.other().SubscribeSync("ext.registry.host.b1")
			if err != nil {
				t.Fatal(err)
			}
			settings := config.Default()
			ctx, cancel := context.WithCancel(t.Context())
			b := bridge.New(h.nc, bridge.Config{Name: "b1", Settings: settings, StateDir: t.TempDir()})
			done := make(chan error, 1)
			go func() { done <- b.Run(ctx) }() // ends with cancel, or gives way
			if gives {
				if err := <-done; err == nil || !strings.Contains(err.Error(), `another bridge named "b1" runs on this mesh, since 2020`) {
					t.Errorf("Run: %v", err)
				}
				cancel()
				return
			}
			eventually(t, "it has asked three times", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return asked == 6
			}, nil)
			for range 4 { // its first, and one for each answer
				if _, err := reports.NextMsg(15 * time.Second); err != nil {
					t.Fatalf("it reports no more: %v", err)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// TestTwoAtOnce starts two of a name side by side: in the end one of them runs.
func TestTwoAtOnce(t *testing.T) {
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
