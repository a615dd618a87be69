package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	big := json.RawMessage(`"` + strings.Repeat("0123456789abcdef", 25<<20/16) + `"`)
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return big, nil })
	serveWeather(t, connect(), weather, h, serve.Options{})

	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	for range 3 {
		got, err := client.Call(t.Context(), "weather/big", nil)
		if err != nil || string(got) != string(big) {
			t.Fatalf("25 MiB: %d bytes, %v", len(got), err)
		}
	}
	m, err := connect().Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/big"}`), time.Minute)
	if err != nil || m.Header.Get("Nats-Service-Error-Code") != "-32006" || !strings.Contains(string(m.Data), `"size":262`) {
		t.Errorf("without a stream: %.300s, %v", m.Data, err)
	}
}

// TestAcknowledgements reads the chunks of a large answer by hand. Two instances share a connection, so that each
// acknowledgement reaches it twice, and counts once: the sender is 1 MiB ahead of what was acknowledged, at most.
func TestAcknowledgements(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	nc := connect()
	node := serve.NewPublisher(nc, serve.PublisherOptions{})
	big := json.RawMessage(`"` + strings.Repeat("0123456789abcdef", 40<<20/16) + `"`)
	h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return big, nil })
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { node.Run(ctx) }) // ends with ctx
	for range 2 {
		slot := node.Join(weather)
		wg.Go(func() { slot.Serve(ctx, h, serve.Options{DrainTimeout: time.Millisecond}) }) // ends with ctx
		natstest.Eventually(t, "the slot is ready", func() bool { s, _ := slot.State(); return s == heartbeat.Ready })
	}
	caller := connect()
	reply := caller.NewInbox()
	sub, err := caller.SubscribeSync(reply)
	if err != nil {
		t.Fatal(err)
	}
	caller.PublishMsg(&nats.Msg{Subject: "ext.weather.rpc", Reply: reply, Data: []byte(`{"id":1,"method":"tools/x"}`),
		Header: nats.Header{"Ext-Stream": {"1"}}})
	acks := map[string]bool{}
	const lot = wire.AckEvery
	for chunks := 1; chunks <= 3*lot; chunks++ {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("chunk %d: %v", chunks, err)
		}
		if isWaiting(m) {
			chunks--
			continue
		}
		if (m.Reply != "") != (chunks%lot == 0) {
			t.Fatalf("chunk %d has the reply subject %q", chunks, m.Reply)
		}
		if m.Reply == "" {
			continue
		}
		acks[m.Reply] = true
		if token, ok := strings.CutPrefix(m.Reply, "ext.weather.ack."); !ok || len(token) < 13 || strings.ContainsAny(token, ".*>") {
			t.Errorf("to be acknowledged on %s", m.Reply)
		}
		if chunks == lot {
			caller.Publish(m.Reply, nil)
		}
	}
	if m, err := sub.NextMsg(300 * time.Millisecond); err == nil {
		t.Errorf("one lot was acknowledged, and a fourth is sent: chunk %s", m.Header.Get("Ext-Seq"))
	}
	if len(acks) != 1 {
		t.Errorf("the ack subjects of one answer are %v", acks)
	}
}

// TestInvalidUTF8: what is not UTF-8 in an answer or in progress does not reach the caller, whose own client it may stop.
func TestInvalidUTF8(t *testing.T) {
	connect := startServer(t)
	serveWeather(t, connect(), weather, rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		return json.RawMessage("\"gr\xfc\xdfe\""), r.Send("notifications/progress", json.RawMessage("{\"message\":\"\xfc\"}"))
	}), serve.Options{})
	var seen string
	got, err := mesh.NewClient(connect(), mesh.ClientOptions{}).CallStream(t.Context(), "weather/x", nil, func(n json.RawMessage) { seen += string(n) })
	if err != nil || string(got) != "\"gr\uFFFDe\"" || !strings.Contains(seen, "\"\uFFFD\"") {
		t.Errorf("= %q, %v, progress %q", got, err, seen)
	}
}

func TestProgress(t *testing.T) {
	connect := startServer(t)
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		for i := range 3 {
			if err := r.Send("notifications/progress", json.RawMessage(fmt.Sprintf(`{"progress":%d}`, i))); err != nil {
				return nil, err
			}
		}
		return json.RawMessage(`"done"`), nil
	})
	serveWeather(t, connect(), weather, h, serve.Options{})
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	var seen []string
	got, err := client.CallStream(t.Context(), "weather/x", nil, func(n json.RawMessage) { seen = append(seen, string(n)) })
	if err != nil || string(got) != `"done"` || len(seen) != 3 || !strings.Contains(seen[2], `{"progress":2}`) {
		t.Errorf("= %s, %v, progress %v", got, err, seen)
	}
	if got, err := client.Call(t.Context(), "weather/x", nil); err != nil || string(got) != `"done"` {
		t.Errorf("without progress: %s, %v", got, err)
	}
}

// TestLongCalls checks that a streaming caller gets signs of life during a long call, and that the call of a caller that
// disconnects without a cancellation is cancelled.
func TestLongCalls(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	started, ended := make(chan struct{}), make(chan error, 1)
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	serveWeather(t, connect(), weather, h, serve.Options{})
	nc := connect()
	frames := make(chan *nats.Msg, 10)
	reply := nc.NewInbox()
	sub, err := nc.ChanSubscribe(reply, frames)
	if err != nil {
		t.Fatal(err)
	}
	nc.PublishMsg(&nats.Msg{Subject: "ext.weather.rpc", Reply: reply, Data: []byte(`{"id":1,"method":"tools/x"}`),
		Header: nats.Header{"Ext-Stream": {"1"}}})
	for _, want := range []string{"accepted", "keepalive"} {
		select {
		case m := <-frames:
			if kind := m.Header.Get("Ext-Frame"); kind != want {
				t.Fatalf("frame %q, want %q", kind, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no frame %q", want)
		}
	}
	sub.Unsubscribe()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the handler saw %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the call runs on for a caller that has gone")
	}
}

// TestClientCancels checks that giving up reaches the handler.
func TestClientCancels(t *testing.T) {
	connect := startServer(t)
	started, ended := make(chan struct{}), make(chan error, 1)
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	serveWeather(t, connect(), weather, h, serve.Options{})
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { // ends when the call has come, or with it
		select {
		case <-started:
			cancel()
		case <-ctx.Done():
		}
	}()
	if _, err := client.Call(ctx, "weather/x", nil); !errors.Is(err, rpc.CodeCancelled) {
		t.Errorf("Call: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the handler was not told")
	}
}

// isWaiting reports whether a frame only states that a call is running, as after a second on a busy machine.
func isWaiting(m *nats.Msg) bool {
	kind := m.Header.Get(wire.HeaderFrame)
	return kind == wire.FrameAccepted || kind == wire.FrameKeepalive
}
