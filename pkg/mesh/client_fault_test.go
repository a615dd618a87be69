package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestSlowCaller checks that a caller that is slow to take progress loses progress and not the answer.
func TestSlowCaller(t *testing.T) {
	connect := startServer(t)
	big := `"` + strings.Repeat("x", 6<<20) + `"`
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		for i := range 500 {
			r.Send("notifications/progress", json.RawMessage(fmt.Sprint(i)))
		}
		if r.Method == "tools/big" {
			return json.RawMessage(big), nil
		}
		return json.RawMessage(`"done"`), nil
	})
	serveWeather(t, connect(), weather, h, serve.Options{})
	nc := connect()
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	for _, tt := range []struct {
		tool, want string
		messages   uint64 // that come while the first progress is held: with the answer, or its first chunks
	}{{"small", `"done"`, 501}, {"big", big, 500 + wire.AckEvery*wire.MaxUnacked}} {
		before := nc.Stats().InMsgs
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		seen := 0
		got, err := client.CallStream(ctx, "weather/"+tt.tool, nil, func(json.RawMessage) {
			if seen++; seen == 1 {
				natstest.Eventually(t, "all has come", func() bool { return nc.Stats().InMsgs >= before+tt.messages })
				taken := make(chan struct{})
				nc.Barrier(func() { close(taken) })
				<-taken
			}
		})
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %d bytes, %v", tt.tool, len(got), err)
		}
		if seen == 0 {
			t.Errorf("%s: no progress", tt.tool)
		}
		cancel()
	}
}

// foreign answers with frames and texts of its own.
func foreign(t *testing.T, nc *nats.Conn, answer func(*nats.Msg)) {
	t.Helper()
	if _, err := nc.QueueSubscribe("ext.weather.rpc", "q", answer); err != nil {
		t.Fatal(err)
	}
	nc.Flush()
}

// TestOwnTimeouts checks that an extension that answers -32001 itself, as MCP servers do, is not held for one that
// hangs.
func TestOwnTimeouts(t *testing.T) {
	connect := startServer(t)
	nc := connect()
	foreign(t, nc, func(m *nats.Msg) {
		m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Request timed out"}}`))
	})
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	for range 8 {
		if _, err := client.CallExt(t.Context(), "weather", "tools/x", nil); !errors.Is(err, rpc.CodeTimeout) {
			t.Fatalf("= %v, want the extension's own error", err)
		}
	}
}

// TestComplaints checks that a caller that finds no instance many times sends few reports.
func TestComplaints(t *testing.T) {
	connect := startServer(t)
	nc := connect()
	heard, err := nc.SubscribeSync("ext.registry.suspect.weather")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	cc := connect()
	client := mesh.NewClient(cc, mesh.ClientOptions{})
	began, calls, n := time.Now(), 0, 0
	natstest.Eventually(t, "a complaint, and many more calls", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		client.CallExt(ctx, "weather", "ping", nil)
		cc.Flush()
		nc.Flush()
		n, _, _ = heard.Pending()
		calls++
		return n > 0 && calls > 40
	})
	if took := time.Since(began); n > 1+int(took/time.Second) {
		t.Errorf("%d complaints within %s", n, took)
	}
}

// TestNATSAwayDuringCalls checks that calls that lose their answers with the connection are not held against the
// extension.
func TestNATSAwayDuringCalls(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, &server.Options{Port: -1})
	nc := s.Connect(nats.ReconnectWait(10*time.Millisecond), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	got := make(chan struct{}, 100)
	hang := func(m *nats.Msg) { got <- struct{}{} }
	foreign(t, nc, hang)
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	ends := make(chan error, 6)
	ctx, expire := mesh.Expiring(t)
	defer expire()
	for range cap(ends) {
		go func() {
			_, err := client.CallExt(ctx, "weather", "tools/x", nil)
			ends <- err
		}()
	}
	for range cap(ends) {
		select {
		case <-got:
		case err := <-ends:
			t.Fatal("over before it was there:", err)
		}
	}
	s.Restart(nil)
	natstest.Eventually(t, "NATS is back", func() bool { return nc.IsConnected() && nc.Stats().Reconnects > 0 })
	expire()
	for range cap(ends) {
		if err := <-ends; !errors.Is(err, rpc.CodeTimeout) {
			t.Errorf("cut off: %v", err)
		}
	}
	ctx, expire = mesh.Expiring(t)
	defer expire()
	go func() { <-got; expire() }() // ends with the call
	if _, err := client.CallExt(ctx, "weather", "tools/x", nil); !errors.Is(err, rpc.CodeTimeout) {
		t.Errorf("the call after that: %v, want it to be made", err)
	}
}

// TestHostileStreams sends frames that no honest instance sends: each call ends, with an error, and is cancelled at its
// sender.
func TestHostileStreams(t *testing.T) {
	connect := startServer(t)
	nc := connect()
	frame := func(to, kind, seq, body string) {
		m := nats.NewMsg(to)
		m.Data = []byte(body)
		m.Header.Set("Ext-Frame", kind)
		if seq != "" {
			m.Header.Set("Ext-Seq", seq)
		}
		nc.PublishMsg(m)
	}
	var answer func(m *nats.Msg)
	foreign(t, nc, func(m *nats.Msg) { answer(m) })
	cancels, err := nc.SubscribeSync("ext.weather.cancel")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	for _, tt := range []struct {
		name   string
		answer func(m *nats.Msg)
		code   rpc.Code
		ran    rpc.Ran
		cancel bool
	}{
		{"a gap", func(m *nats.Msg) { frame(m.Reply, "chunk", "1", "{"); frame(m.Reply, "chunk", "3", "}") }, rpc.CodeInternal, rpc.RanMaybe, true},
		{"no number", func(m *nats.Msg) { frame(m.Reply, "chunk", "", "{}") }, rpc.CodeInternal, rpc.RanMaybe, true},
		{"a number like no other", func(m *nats.Msg) { frame(m.Reply, "chunk", "+1", "{}") }, rpc.CodeInternal, rpc.RanMaybe, true},
		{"a huge number", func(m *nats.Msg) { frame(m.Reply, "chunk", "99999999999999999999", "{}") }, rpc.CodeInternal, rpc.RanMaybe, true},
		{"a wrong length", func(m *nats.Msg) { frame(m.Reply, "chunk", "1", "{}"); frame(m.Reply, "end", "", `{"length":3}`) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"a negative length", func(m *nats.Msg) { frame(m.Reply, "end", "", `{"length":-1}`) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"a length of nothing", func(m *nats.Msg) { frame(m.Reply, "end", "", `{}`) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"no length", func(m *nats.Msg) { frame(m.Reply, "end", "", ``) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"an end of chunks that are no response", func(m *nats.Msg) { frame(m.Reply, "chunk", "1", "{}"); frame(m.Reply, "end", "", `{"length":2}`) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"a 503 with a body", func(m *nats.Msg) {
			r := nats.NewMsg(m.Reply)
			r.Header.Set("Status", "503")
			r.Data = []byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"own"}}`)
			nc.PublishMsg(r)
		}, -1, "", false},
		{"an empty answer", func(m *nats.Msg) { m.Respond(nil) }, rpc.CodeInternal, rpc.RanMaybe, false},
		{"an error that is a string", func(m *nats.Msg) { m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"error":"boom"}`)) }, rpc.CodeInternal, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer = tt.answer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := client.CallExt(ctx, "weather", "tools/x", nil)
			if !errors.Is(err, tt.code) || rpc.AsError(err).Details().Ran != tt.ran {
				t.Errorf("= %v (%+v), want %v", err, rpc.AsError(err).Details(), tt.code)
			}
			if tt.cancel {
				if _, err := cancels.NextMsg(time.Minute); err != nil {
					t.Errorf("the sender is not told: %v", err)
				}
			}
			if m, err := cancels.NextMsg(10 * time.Millisecond); err == nil {
				t.Errorf("cancelled for nothing: %s", m.Data)
			}
		})
	}
}

// TestPairNeedsNoCatalog: <id>/<own name> reaches an extension that the catalog lacks, with hooks and without. Where
// nothing is subscribed either, there is no such tool.
func TestPairNeedsNoCatalog(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(echo), serve.Options{})
	nc := connect()
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	for _, hooks := range []bool{false, true} {
		client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, ToolHooks: hooks})
		if _, err := client.Call(t.Context(), "weather/echo", nil); err != nil {
			t.Errorf("hooks %t: %v", hooks, err)
		}
		for _, name := range []string{"elsewhere/echo", "weather/", "Weather/echo", "ext_weather_echo"} {
			if _, err := client.Call(t.Context(), name, nil); !errors.As(err, new(*mesh.NotFoundError)) {
				t.Errorf("hooks %t: %s: %v", hooks, name, err)
			}
		}
	}
}

// TestForgedAnswers: an attacker that has seen a caller's requests and may publish to its inbox sends answers as fast as
// possible, to tokens like those that it has seen. None is accepted.
func TestForgedAnswers(t *testing.T) {
	const calls = 20
	connect := startServer(t)
	attacker := connect()
	seen := make(chan string, 1)
	foreign(t, attacker, func(m *nats.Msg) { // an extension of the attacker's, which the caller calls, too
		m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":"its own"}`))
		select {
		case seen <- m.Reply:
		default:
		}
	})
	victim := connect()
	started := make(chan string, calls)
	release := make(chan struct{})
	if _, err := victim.QueueSubscribe("ext.bank.rpc", "q", func(m *nats.Msg) {
		started <- m.Reply
		go func() { // ends with the flood
			<-release
			m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":"true"}`))
		}()
	}); err != nil {
		t.Fatal(err)
	}
	victim.Flush()
	nc := connect()
	client := mesh.NewClient(nc, mesh.ClientOptions{Timeout: time.Minute})
	if _, err := client.Call(t.Context(), "weather/x", nil); err != nil {
		t.Fatal(err)
	}
	reply := <-seen
	ends := make(chan string, calls)
	for range calls {
		go func() { // ends with its answer
			got, err := client.Call(t.Context(), "bank/balance", nil)
			ends <- fmt.Sprint(string(got), err)
		}()
	}
	tokens := map[string]bool{}
	for range calls {
		r := <-started
		if i := strings.LastIndexByte(r, '.'); r[:i] != reply[:i] {
			t.Fatalf("another inbox: %s, %s", r, reply)
		}
		tokens[r] = true
	}
	if len(tokens) != calls {
		t.Errorf("%d tokens for %d calls", len(tokens), calls)
	}
	prefix, token := reply[:strings.LastIndexByte(reply, '.')+1], reply[strings.LastIndexByte(reply, '.')+1:]
	base, err := strconv.ParseUint(token, 36, 64)
	if err != nil {
		t.Fatal(err)
	}
	forged := []byte(`{"jsonrpc":"2.0","id":1,"result":"forged"}`)
	for n := range uint64(5000) { // 10 s of 1,000 a second
		attacker.Publish(prefix+strconv.FormatUint(n, 36), forged)
		attacker.Publish(prefix+strconv.FormatUint(base+n, 36), forged)
	}
	attacker.Flush()
	nc.Flush() // all of them have arrived
	close(release)
	for range calls {
		if end := <-ends; end != `"true"<nil>` {
			t.Errorf("a call ended with %s", end)
		}
	}
}

// TestAnswersToOtherRequests: an answer with another id is an error, not a result.
func TestAnswersToOtherRequests(t *testing.T) {
	connect := startServer(t)
	var answer string
	foreign(t, connect(), func(m *nats.Msg) { m.Respond([]byte(answer)) })
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"result":true}`:                                                  "",
		`{"jsonrpc":"2.0","id":2,"result":true}`:                                                  "the id \"2\"",
		`{"jsonrpc":"2.0","id":"1","result":true}`:                                                "the id",
		`{"jsonrpc":"2.0","id":null,"result":true}`:                                               "the id",
		`{"jsonrpc":"2.0","result":true}`:                                                         "",
		`{"jsonrpc":"2.0","id":2,"error":{"code":7,"message":"of another"}}`:                      "the id",
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"I could not read the id"}}`: "could not read",
	} {
		answer = body
		_, err := client.Call(t.Context(), "weather/x", nil)
		if want == "" && !strings.Contains(body, `"id"`) {
			want = "the id"
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
