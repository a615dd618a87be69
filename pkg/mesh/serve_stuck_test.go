package mesh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestServeLeavesStuckHandlersBehind has handlers that take no notice of their contexts: Serve returns all the same,
// each caller has one answer, and what they come back with in the end goes nowhere.
func TestServeLeavesStuckHandlersBehind(t *testing.T) {
	stuck := map[string]func(*rpc.Request) (json.RawMessage, error){
		"result": func(*rpc.Request) (json.RawMessage, error) { return json.RawMessage(`"late"`), nil },
		"large": func(*rpc.Request) (json.RawMessage, error) {
			return json.RawMessage(`"` + strings.Repeat("x", 3<<20) + `"`), nil
		},
		"error":    func(*rpc.Request) (json.RawMessage, error) { return nil, errors.New("late") },
		"panic":    func(*rpc.Request) (json.RawMessage, error) { panic("late") },
		"goexit":   func(*rpc.Request) (json.RawMessage, error) { runtime.Goexit(); return nil, nil },
		"progress": func(r *rpc.Request) (json.RawMessage, error) { return nil, r.Send("notifications/progress", nil) },
	}
	connect := startServer(t)
	caller, nc := connect(), connect()
	inbox, err := caller.SubscribeSync(caller.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	others := goleak.IgnoreCurrent()

	release := make(chan struct{})
	var entered sync.WaitGroup
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		entered.Done()
		name := strings.TrimPrefix(r.Method, "tools/")
		if stuck[name] == nil {
			<-ctx.Done()
			if name == "obedient" { // its caller has not cancelled the call
				return nil, ctx.Err()
			}
			return json.RawMessage(`"polite"`), nil
		}
		<-release
		return stuck[name](r)
	})
	var log bytes.Buffer
	node := serve.NewPublisher(nc, serve.PublisherOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	slot := node.Join(weather)
	nodeCtx, stopNode := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	defer stopNode()
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { node.Run(nodeCtx) }) // ends with nodeCtx
	done := make(chan error, 1)
	go func() { done <- slot.Serve(ctx, h, serve.Options{DrainTimeout: 10 * time.Millisecond}) }() // ends with ctx
	natstest.Eventually(t, "the slot is ready", func() bool { s, _ := slot.State(); return s == "ready" })

	want := map[string]string{`"polite"`: `"result":"polite"`, `"obedient"`: `"kind":"extension_exited"`}
	send := func(name string) {
		t.Helper()
		entered.Add(1)
		m := callOf(name, inbox.Subject)
		if err := caller.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	send("polite")
	send("obedient")
	for name := range stuck {
		send(name)
		want[fmt.Sprintf("%q", name)] = `"ran":"maybe"`
	}
	entered.Wait()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve returned %v", err)
		}
	case <-time.After(time.Minute):
		close(release)
		t.Fatal("Serve has not returned")
	}
	for len(want) > 0 {
		m, err := inbox.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("no answer to %v: %v", want, err)
		}
		if isWaiting(m) {
			continue
		}
		env, err := jsonrpc.Scan(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		text := want[string(env.ID)]
		if text == "" || !strings.Contains(string(m.Data), text) || env.Error != nil && m.Header.Get("Nats-Service-Error-Code") != fmt.Sprint(int(rpc.CodeExited)) {
			t.Errorf("an answer to %s: %v %s", env.ID, m.Header, m.Data)
		}
		delete(want, string(env.ID))
	}
	if c := slot.Counts(); c.InFlight != 0 || c.Calls != uint64(len(stuck)+2) {
		t.Errorf("behind the end: %+v", c)
	}
	stopNode()
	running.Wait()
	if want := fmt.Sprintf("handlers=%d", len(stuck)); strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), want) {
		t.Errorf("the log does not say %s: %s", want, log.String())
	}

	before := slot.Counts()
	close(release)
	leaks.None(t, others) // they have come back
	if err := errors.Join(nc.Flush(), caller.Flush()); err != nil {
		t.Fatal(err)
	}
	if m, err := inbox.NextMsg(0); err == nil {
		t.Errorf("a second answer: %.200s", m.Data)
	}
	if after := slot.Counts(); after.InFlight != 0 || !maps.Equal(after.ByKind, before.ByKind) || after.Took.Sum != before.Took.Sum {
		t.Errorf("the late ones were counted: %+v, before %+v", after, before)
	}
}

// callOf is a streaming call of a tool, with the tool's name as its id.
func callOf(tool, reply string) *nats.Msg {
	m := nats.NewMsg("ext.weather.rpc")
	m.Reply, m.Data = reply, fmt.Appendf(nil, `{"id":%q,"method":"tools/%s"}`, tool, tool)
	m.Header.Set("Ext-Stream", "1")
	return m
}
