package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
)

// callers calls a tool at a rate, without retries, and keeps the ids of the calls that a bridge has answered with an error.
type callers struct {
	nc      *nats.Conn
	made    atomic.Int64
	waiting atomic.Int64 // for an answer

	mu     sync.Mutex
	failed []string
}

// run makes rate calls a second until ctx is done, and waits for their answers. At most 100 wait at the same time: an instance
// accepts 128 of one caller.
func (c *callers) run(ctx context.Context, rate int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for due := int64(time.Since(began).Seconds() * float64(rate)); c.made.Load() < due && c.waiting.Load() < 100; {
			id := fmt.Sprint("call-", c.made.Add(1))
			c.waiting.Add(1)
			wg.Go(func() { // ends with the answer, or after the time limit
				defer c.waiting.Add(-1)
				c.call(context.WithoutCancel(ctx), id)
			})
		}
	}
}

func (c *callers) call(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: wire.Prefix(wire.DefaultPrefix).RPC("echo"), Header: nats.Header{wire.HeaderCallID: {id}},
		Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/say","params":{"what":"hi"}}`)})
	if errors.Is(err, nats.ErrNoResponders) { // no bridge has received it
		return
	}
	var answer struct{ Error json.RawMessage }
	if err != nil || json.Unmarshal(m.Data, &answer) != nil || len(answer.Error) > 0 {
		c.mu.Lock()
		c.failed = append(c.failed, id)
		c.mu.Unlock()
	}
}

// TestCallsOfCallers kills the processes of an extension, on one of two bridges after the other, under 500 calls a second. The
// failures in extctl calls must be those that the callers received, by call id.
func TestCallsOfCallers(t *testing.T) {
	t.Parallel()
	kills, pause := 4, 250*time.Millisecond
	if os.Getenv("EXTMESH_SLOW") != "" {
		kills, pause = 60, time.Second
	}
	dir, data := extensionDir(t, map[string]string{"echo": shellExtension}), t.TempDir()
	settings := filepath.Join(data, "extensions.yaml")
	if err := os.WriteFile(settings, []byte("extensions: {supervision: {max_restarts: 1000, base_backoff: 10ms, max_backoff: 10ms}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := startUp(t, dir, "--listen", "0", "--data", data, "--name", "b1", "--log-level", "error", "--config", settings)
	one.await(t, "Ctrl-C stops everything.")
	var out strings.Builder
	if code := run(t.Context(), []string{"url", "--data", data}, nil, &out, os.Stderr, func(string) string { return "" }); code != 0 {
		t.Fatal("no address")
	}
	url := strings.TrimSpace(out.String())
	two := startUp(t, "--join", dir, "--server", url, "--name", "b2", "--log-level", "error", "--config", settings)
	two.await(t, "ready     echo")
	nc, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	began := time.Now()
	c := &callers{nc: nc}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx, 500) }) // ends with stop
	for n := range kills {
		pid := childOf(t, nc, []string{"b1", "b2"}[n%2])
		// It is stopped until some calls are waiting for it: those will fail.
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "calls are waiting for the process", func() bool { return c.waiting.Load() >= 5 })
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "it is time for the next process", func() bool { return time.Since(began) > time.Duration(n+1)*pause })
	}
	stop()
	running.Wait()
	slices.Sort(c.failed)
	var listed struct {
		Calls []callJSON
		More  bool
	}
	same := func() bool { // a bridge keeps a call after it has answered it
		code, stdout, stderr := extctl(t.Context(), url, "calls", "--failed", "--since", began.Format(time.RFC3339Nano), "--json")
		if code != 0 || json.Unmarshal([]byte(stdout), &listed) != nil {
			t.Fatalf("exit code %d, %s%s", code, stdout, stderr)
		}
		var ids []string
		for _, r := range listed.Calls {
			ids = append(ids, r.CallID)
		}
		slices.Sort(ids)
		return slices.Equal(ids, c.failed)
	}
	natstest.Eventually(t, "the same failures are listed", same)
	t.Logf("%d calls in %v, %d processes killed, %d failures, the same in extctl calls --failed", c.made.Load(), time.Since(began).Round(time.Millisecond), kills, len(c.failed))
	if len(c.failed) < kills || listed.More {
		t.Errorf("%d failures, more %v", len(c.failed), listed.More)
	}
}

// childOf waits until the extension's process on a bridge is ready, and returns its id.
func childOf(t *testing.T, nc *nats.Conn, name string) (pid int) {
	t.Helper()
	natstest.Eventually(t, "the process of "+name+" is ready", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := natsconn.Request(ctx, nc, wire.Prefix(wire.DefaultPrefix).Control(name), []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`))
		var answer struct{ Result bridge.Status }
		if err != nil || json.Unmarshal(m.Data, &answer) != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, i := range answer.Result.Instances {
			if i.ID == "echo" && i.State == "ready" {
				pid = i.PID
			}
		}
		return pid > 0
	})
	return pid
}
