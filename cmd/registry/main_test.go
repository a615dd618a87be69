package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natsd"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--heartbeat-interval 10ms":   "want 1s to 5m0s",
		"--heartbeat-grace-factor 1":  "want 1.5 to 100",
		"--forget-after 0s":           "negative one for never",
		"--replicas 9":                "want 1 to 5",
		"--heartbeat-interval banana": "banana",
		"--server http://x":           "want nats",
	} {
		var out bytes.Buffer
		if code := program().Execute(t.Context(), strings.Fields(args), &out, &out); code != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit %d, %s; want exit 2 with %q", args, code, &out, want)
		}
	}
}

// TestRuns: the registry starts, becomes ready and leader, and stops when its context ends.
func TestRuns(t *testing.T) {
	srv, err := natsd.Start(natsd.Config{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var log lockedBuffer
	wg.Go(func() { // ends with cancel
		args := []string{"--server", srv.ClientURL(), "--http", "127.0.0.1:0"}
		if code := program().Execute(ctx, args, io.Discard, &log); code != 0 {
			t.Errorf("exit %d", code)
		}
	})
	eventually := func(what string, holds func() bool) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(30 * time.Second); !holds(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("the registry never %s:\n%s", what, log.String())
			}
		}
	}
	var addr string
	says := regexp.MustCompile(`health endpoints.*(127\.0\.0\.1:\d+)`)
	eventually("logged its HTTP address", func() bool {
		m := says.FindStringSubmatch(log.String())
		if m != nil {
			addr = m[1]
		}
		return m != nil
	})
	eventually("was ready", func() bool { _, err := get(addr + "/readyz"); return err == nil })
	eventually("led", func() bool { // the registry is ready before its metrics show the lease
		body, err := get(addr + "/metrics")
		return err == nil && strings.Contains(body, "extmesh_registry_leader 1\n")
	})
	http.DefaultClient.CloseIdleConnections()
	cancel()
	wg.Wait()
	if !strings.Contains(log.String(), "registry is running") {
		t.Errorf("log: %s", log.String())
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func get(url string) (string, error) {
	resp, err := http.Get("http://" + url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(body), err
}
