package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestCallersBreaker lets calls time out: the client reports the extension to the registry, and after five it refuses further
// calls.
func TestCallersBreaker(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	nc := b.connect()
	silent, err := nc.SubscribeSync("ext.mute.rpc") // receives requests and does not answer
	if err != nil {
		t.Fatal(err)
	}
	reports, err := b.nc.SubscribeSync("ext.registry.suspect.mute")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	b.put("spec.mute", wire.Spec{ID: "mute", Version: "1.0.0", Subject: "ext.mute.rpc", Tools: []wire.Tool{{Name: "ext_mute_x", Own: "x"}}})
	b.put("state.mute", wire.StateDoc{State: heartbeat.Ready, Available: true})
	catalog := b.follow(CatalogOptions{})
	await(t, catalog, "it is there", has("mute", heartbeat.Ready))
	client := NewClient(b.nc, ClientOptions{Catalog: catalog})
	ctx, expire := Expiring(t)
	call := func() error {
		_, err := client.Call(ctx, "ext_mute_x", nil)
		return err
	}
	received := func(want int) {
		t.Helper()
		natstest.Eventually(t, fmt.Sprintf("%d requests are received", want), func() bool { n, _, _ := silent.Pending(); return n >= want })
	}
	var five sync.WaitGroup
	for i := range 5 {
		five.Go(func() { // ends with ctx
			if err := call(); !errors.Is(err, rpc.CodeTimeout) {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	received(5)
	expire()
	five.Wait()
	ctx, expire = Expiring(t)
	if err := call(); !errors.Is(err, rpc.CodeBreakerOpen) || rpc.AsError(err).Details().RetryAfterMS <= 0 {
		t.Errorf("after five time-outs: %v", err)
	}
	if m, err := reports.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), `"reason":"timeout"`) {
		t.Errorf("report %v, %v", m, err)
	}
	b.nc.Flush()
	nc.Flush()
	if n, _, _ := silent.Pending(); n != 5 {
		t.Errorf("%d requests were sent, want 5", n)
	}
	since := time.Now()
	b.put("state.mute", wire.StateDoc{State: heartbeat.Ready, Available: true, Since: since})
	await(t, catalog, "the news arrives", func(c *Catalog) bool {
		e, _ := c.Get("mute")
		return e.State.Since.Equal(since)
	})
	probe := make(chan error, 1)
	go func() { probe <- call() }() // ends with ctx
	received(6)
	expire()
	if err := <-probe; !errors.Is(err, rpc.CodeTimeout) {
		t.Errorf("the probe after the news: %v", err)
	}
	ctx, _ = Expiring(t)
	if err := call(); !errors.Is(err, rpc.CodeBreakerOpen) {
		t.Errorf("after the failed probe: %v", err)
	}
}

// TestFleetsBreaker shows an open breaker in the catalog: a client that has not called before refuses calls immediately,
// except one call a second, and only until the time of the next try.
func TestFleetsBreaker(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	open := func(until time.Time) wire.StateDoc {
		return wire.StateDoc{State: heartbeat.Ready, Reason: "not answering", Since: until, Breaker: &heartbeat.Breaker{State: heartbeat.BreakerOpen, RetryAt: &until}}
	}
	serveEcho(t, b)
	b.put("spec.echo", wire.Spec{ID: "echo", Version: "1.0.0", Subject: "ext.echo.rpc", Tools: []wire.Tool{{Name: "ext_echo_x", Own: "x"}}})
	b.put("state.echo", open(time.Now().Add(time.Hour)))
	catalog := b.follow(CatalogOptions{})
	await(t, catalog, "it is there", has("echo", heartbeat.Ready))
	catalog.mu.Lock()
	catalog.data.seen = time.Now().Add(time.Hour) // no registry renews it
	catalog.mu.Unlock()
	client := NewClient(b.nc, ClientOptions{Catalog: catalog})
	call := func() error {
		_, err := client.Call(t.Context(), "ext_echo_x", nil)
		return err
	}
	began := time.Now()
	if err := call(); err != nil {
		t.Errorf("the catalog has no veto: %v", err)
	}
	again := time.Now()
	err := call()
	for err == nil && time.Since(began) >= throughEvery { // it was the next second's
		began, again = again, time.Now()
		err = call()
	}
	if !errors.Is(err, rpc.CodeBreakerOpen) || !strings.Contains(err.Error(), "not answering") {
		t.Errorf("the second call within a second: %v", err)
	}
	if e, ok := errors.AsType[*rpc.Error](err); !ok || e.Details().RetryAfterMS != longestDelay.Milliseconds() {
		t.Errorf("it shall be tried again after %+v", e)
	}
	past := time.Now().Add(-time.Second)
	b.put("state.echo", open(past))
	await(t, catalog, "the news arrives", func(c *Catalog) bool {
		e, _ := c.Get("echo")
		return e.State.Since.Equal(past)
	})
	for range 3 {
		if err := call(); err != nil {
			t.Errorf("after retry_at: %v", err)
		}
	}
}

// serveEcho answers on ext.echo.rpc.
func serveEcho(t *testing.T, b *catalogBed) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method == "initialize" {
			return json.RawMessage(`{"server_version":"1","tools":[],"hooks":[]}`), nil
		}
		return r.Params, nil
	})
	nc := b.connect()
	go func() { done <- Serve(ctx, nc, Service{ID: "echo", Version: "1.0.0", Handler: h}) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	for {
		if _, err := b.nc.Request("ext.echo.rpc", []byte(`{"id":1,"method":"ping"}`), time.Second); err == nil {
			return
		}
	}
}
