package mesh

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// asMesh answers a request; an error gets the headers that mark it as the mesh's, unless its text is "its own".
func asMesh(m *nats.Msg, body string) {
	r := nats.NewMsg(m.Reply)
	if strings.Contains(body, `"error"`) && !strings.Contains(body, "its own") {
		r.Header.Set(micro.ErrorHeader, "refused")
		r.Header.Set(micro.ErrorCodeHeader, "-32000")
	}
	r.Data = []byte(`{"jsonrpc":"2.0","id":1,` + body + `}`)
	m.RespondMsg(r)
}

func TestTryingAgain(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	var tries atomic.Int32
	var answer func(try int32) string
	nc := b.connect()
	if _, err := nc.QueueSubscribe("ext.x.rpc", wire.QueueGroup, func(m *nats.Msg) {
		asMesh(m, answer(tries.Add(1)))
	}); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	hint := func(name string) []wire.Member {
		return []wire.Member{{Key: "annotations", Value: json.RawMessage(`{"` + name + `":true}`)}}
	}
	b.put("spec.x", wire.Spec{ID: "x", Version: "1.0.0", Subject: "ext.x.rpc", Tools: []wire.Tool{
		{Name: "ext_x_plain", Own: "plain"},
		{Name: "ext_x_read", Own: "read", Extra: hint("readOnlyHint")},
		{Name: "ext_x_same", Own: "same", Extra: hint("idempotentHint")},
		{Name: "ext_x_odd", Own: "odd", Extra: []wire.Member{{Key: "annotations", Value: json.RawMessage(`7`)}}},
	}})
	b.put("state.x", wire.StateDoc{State: heartbeat.Ready, Available: true})
	catalog := b.follow(CatalogOptions{})
	await(t, catalog, "it is there", has("x", heartbeat.Ready))
	client := NewClient(b.nc, ClientOptions{Catalog: catalog})

	const (
		exited     = `"error":{"code":-32000,"message":"died","data":{"kind":"extension_exited","ran":"maybe"}}`
		own        = `"error":{"code":-32000,"message":"its own"}`
		unknown    = `"error":{"code":-32601,"message":"no","data":{"kind":"method_not_found","ran":"no"}}`
		overloaded = `"error":{"code":-32005,"message":"full","data":{"kind":"overloaded","ran":"no","retry_after_ms":30}}`
		later      = `"error":{"code":-32004,"message":"open","data":{"kind":"breaker_open","ran":"no","retry_after_ms":9000}}`
		hostile    = `"error":{"code":-32005,"message":"full","data":{"kind":"overloaded","ran":"no","retry_after_ms":-9000000000000000}}`
		gone       = `"error":{"code":-32003,"message":"gone","data":{"kind":"unavailable","ran":"no"}}`
		failed     = `"error":{"code":-32003,"message":"401","data":{"kind":"unavailable","ran":"no","state":"failed"}}`
		ownGone    = `"error":{"code":-32003,"message":"its own","data":{"kind":"unavailable","ran":"no"}}`
		ownUnknown = `"error":{"code":-32601,"message":"its own","data":{"kind":"method_not_found","ran":"no"}}`
		ownFull    = `"error":{"code":-32005,"message":"its own","data":{"kind":"overloaded","ran":"no","retry_after_ms":1}}`
		ownExited  = `"error":{"code":-32000,"message":"its own","data":{"kind":"extension_exited","ran":"maybe"}}`
		proxied    = `"error":{"code":-32003,"message":"502","data":{"kind":"unavailable","ran":"maybe","status":"502 Bad Gateway"}}`
		proxyLater = `"error":{"code":-32003,"message":"503","data":{"kind":"unavailable","ran":"maybe","retry_after_ms":60000}}`
		done       = `"result":true`
	)
	for _, tt := range []struct {
		name, tool string
		answers    string // one letter a try: e for exited …; the last repeats
		tries      int32
		code       rpc.Code
		atLeast    time.Duration
	}{
		{"it ran, perhaps", "plain", "ed", 1, rpc.CodeExited, 0},
		{"read only", "read", "ed", 2, 0, 0},
		{"idempotent", "same", "eed", 3, 0, 0},
		{"twice and no more", "same", "e", 3, rpc.CodeExited, 0},
		{"odd annotations", "odd", "ed", 1, rpc.CodeExited, 0},
		{"its own error", "read", "od", 1, rpc.CodeExited, 0},
		{"no such tool", "read", "u", 1, rpc.CodeMethodNotFound, 0},
		{"failed", "plain", "Fd", 1, rpc.CodeUnavailable, 0},
		{"the extension's own unavailable", "plain", "1d", 1, rpc.CodeUnavailable, 0},
		{"the extension's own method_not_found", "plain", "2d", 1, rpc.CodeMethodNotFound, 0},
		{"the extension's own overloaded", "plain", "3d", 1, rpc.CodeOverloaded, 0},
		{"the extension's own extension_exited", "read", "4d", 1, rpc.CodeExited, 0},
		{"overloaded for a moment", "plain", "ffd", 3, 0, 70 * time.Millisecond},
		{"overloaded", "plain", "f", 4, rpc.CodeOverloaded, 0},
		{"a breaker that is open for long", "plain", "l", 1, rpc.CodeBreakerOpen, 0},
		{"a time before now", "plain", "hd", 1, rpc.CodeOverloaded, 0},
		{"a time beyond all", "plain", "Hd", 1, rpc.CodeOverloaded, 0},
		{"a proxy without a server", "read", "ppd", 3, 0, 0},
		{"a proxy without a server, and not repeatable", "plain", "pd", 1, rpc.CodeUnavailable, 0},
		{"a proxy that says when", "read", "Pd", 1, rpc.CodeUnavailable, 0},
		{"gone", "plain", "ggd", 3, 0, 50 * time.Millisecond},
		{"it ran, perhaps, and then it had failed", "read", "eF", 2, rpc.CodeExited, 0},
		{"it ran, perhaps, and then it was overloaded", "read", "ef", 4, rpc.CodeExited, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tries.Store(0)
			answer = func(try int32) string {
				c := tt.answers[min(int(try), len(tt.answers))-1]
				return map[byte]string{'e': exited, 'o': own, 'u': unknown, 'f': overloaded, 'l': later, 'h': hostile, 'H': strings.ReplaceAll(hostile, "-9", "9"), 'g': gone, 'd': done,
					'F': failed, 'p': proxied, 'P': proxyLater, '1': ownGone, '2': ownUnknown, '3': ownFull, '4': ownExited}[c]
			}
			began := time.Now()
			_, err := client.Call(t.Context(), "ext_x_"+tt.tool, nil)
			if tt.code == 0 && err != nil || tt.code != 0 && !errors.Is(err, tt.code) {
				t.Errorf("= %v, want code %d", err, tt.code)
			}
			if n := tries.Load(); n != tt.tries {
				t.Errorf("%d tries, want %d", n, tt.tries)
			}
			if took := time.Since(began); took < tt.atLeast {
				t.Errorf("took %s, want at least %s", took, tt.atLeast)
			}
		})
	}
}

// TestSleepHasNoTime checks that a call does not wait if its context would end before the next attempt.
func TestSleepHasNoTime(t *testing.T) {
	ctx, expire := Expiring(t) // ends in an hour
	defer expire()
	if sleep(ctx, time.Hour+time.Minute) || !sleep(ctx, time.Nanosecond) {
		t.Error("it waits for an hour, or not at all")
	}
}

// TestAwayFromWhen: a call to an instance that exited has the same time for the restart as a call that found no instance at
// first.
func TestAwayFromWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCatalog(nil, CatalogOptions{})
		c.take([]change{newChange("state.x", catalog.Stamp{Seq: 1, Time: 1}, []byte(`{"state":"ready","available":true}`))}, time.Now())
		client := NewClient(nil, ClientOptions{Catalog: c, WaitReady: time.Minute})
		<-time.After(time.Hour)              // the attempts before found an instance
		absent := retries{made: len(pauses)} // more than are repeated without regard to time
		for _, tt := range []struct {
			after time.Duration
			want  step
		}{{0, afterPause}, {returnTime - time.Millisecond, afterPause}, {time.Millisecond, stop}} {
			<-time.After(tt.after)
			if got := absent.whenAbsent(client, &target{id: "x"}); got != tt.want {
				t.Errorf("%s after it was absent: %d, want %d", time.Since(absent.away), got, tt.want)
			}
		}
	})
}

// TestReturnIsNotShown: a call succeeds although the catalog, which no registry maintains, shows the extension restarting for
// ever; also if a drained instance hides the one that restarts.
func TestReturnIsNotShown(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]wire.StateDoc{
		"restarting": {State: heartbeat.Restarting},
		"draining":   {State: heartbeat.Draining, Instances: []wire.InstanceState{{State: heartbeat.Draining}, {State: heartbeat.Restarting}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCatalogBed(t)
			b.bucket()
			b.put("spec.x", testSpec("x", "1.0.0", "t"))
			b.put("state.x", state)
			catalog := b.follow(CatalogOptions{})
			await(t, catalog, "it is there", has("x", state.State))
			suspects, err := b.nc.SubscribeSync("ext.registry.suspect.x")
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() { // ends with its answer
				_, err := NewClient(b.nc, ClientOptions{Catalog: catalog, Timeout: time.Minute}).Call(t.Context(), "x/t", nil)
				failed <- err
			}()
			if _, err := suspects.NextMsg(time.Minute); err != nil { // the call has met no instance
				t.Fatal(err)
			}
			if _, err := b.connect().QueueSubscribe("ext.x.rpc", wire.QueueGroup, func(m *nats.Msg) { asMesh(m, `"result":1`) }); err != nil {
				t.Fatal(err)
			}
			if err := <-failed; err != nil {
				t.Error(err)
			}
		})
	}
}
