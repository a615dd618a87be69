package bridge_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestReports: after the first report, an announce request is answered at once; a report is repeated a while after the
// start, and published after a reconnect. Every report has all skills and extensions.
func TestReports(t *testing.T) {
	var running atomic.Pointer[server.Server]
	start := func() {
		s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server does not come up")
		}
		running.Store(s)
	}
	stop := func() { running.Load().Shutdown(); running.Load().WaitForShutdown() }
	start()
	defer func() { stop() }()
	connect := func() *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(dialer(func() (net.Conn, error) { return running.Load().InProcessConn() })),
			nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}

	h := &host{t: t, dir: t.TempDir(), nc: connect()}
	h.extension("talker", `"hi"`, "")
	registry := connect()
	reports := make(chan wire.Host, 100)
	asked := make(chan struct{}, 1)
	_, err := registry.Subscribe(wire.Prefix("ext").HostReport("b1"), func(m *nats.Msg) {
		var report wire.Host
		if err := json.Unmarshal(m.Data, &report); err != nil {
			t.Error(err)
		}
		reports <- report
		select {
		case asked <- struct{}{}: // once: a bridge that has published a report receives requests
			_ = registry.Publish(wire.Prefix("ext").AnnounceRequest(), nil) // on failure no report is received
		default:
		}
	})
	if err == nil {
		err = registry.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	next := func(what string) {
		t.Helper()
		select {
		case report := <-reports:
			if len(report.Extensions) != 1 || report.Extensions[0] != "talker" {
				t.Errorf("%s: %+v", what, report)
			}
		case <-time.After(15 * time.Second):
			t.Fatalf("no report: %s", what)
		}
	}
	halt := h.run(nil)
	next("at the start")
	next("when it is asked for")
	next("once more")

	stop()
	start()
	next("after a reconnect") // immediately or after a delay, because the subscriber reconnects as well
	if err := halt(); err != nil {
		t.Error(err)
	}
}

type dialer func() (net.Conn, error)

func (d dialer) InProcessConn() (net.Conn, error) { return d() }

// TestReportsToSeveralRegistries: registry replicas that start at the same time all request reports. Each request is
// answered, and the answer is repeated.
func TestReportsToSeveralRegistries(t *testing.T) {
	h := newHost(t)
	received, err := h.nc.SubscribeSync("ext.registry.host.b1")
	if err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	next := func(what string) {
		t.Helper()
		if _, err := received.NextMsg(15 * time.Second); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ask := func() {
		t.Helper()
		if err := h.nc.Publish("ext.registry.request", nil); err != nil {
			t.Fatal(err)
		}
	}
	next("at the start")
	next("once more") // the next periodic report would be sent after minutes
	ask()
	next("when it is asked for")
	ask()
	next("a moment later")
	next("once more")
}

// TestRemovedDeclaration: when the manifest of a service that runs elsewhere is removed, a shutdown notice is published
// twice, because the first may be lost, and not again, because another host may declare the same service.
func TestRemovedDeclaration(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.dir, "ext", "elsewhere", "plugin.toml")
	h.write(path, "[plugin]\nid = \"elsewhere\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"nats\"\n", 0o644)
	received, err := h.nc.SubscribeSync("ext.registry.*.elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	next := func(subject string) {
		t.Helper()
		m, err := received.NextMsg(15 * time.Second)
		for err == nil && m.Subject != subject && strings.Contains(m.Subject, "announce") { // reports are repeated once
			m, err = received.NextMsg(15 * time.Second)
		}
		if err != nil || m.Subject != subject {
			t.Fatalf("want %s, have %v, %v", subject, m, err)
		}
	}
	next("ext.registry.announce.elsewhere")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.control("reload", "{}")
	next("ext.registry.shutdown.elsewhere")
	next("ext.registry.shutdown.elsewhere")
	if err := h.nc.Publish("ext.registry.request", nil); err != nil {
		t.Fatal(err)
	}
	h.control("reload", "{}")
	if m, err := received.NextMsg(500 * time.Millisecond); err == nil {
		t.Errorf("after that: %s %s", m.Subject, m.Data)
	}
}

// TestLargeReport: a host with a thousand broken manifests publishes reports, and updates them after a change.
func TestLargeReport(t *testing.T) {
	h := newHost(t)
	reports, err := h.nc.SubscribeSync("ext.registry.host.b1")
	if err != nil {
		t.Fatal(err)
	}
	const broken = 1000 // with several faults each
	for n := range broken {
		h.write(filepath.Join(h.dir, "ext", fmt.Sprint("broken", n), "plugin.toml"), "[plugin]\nid = \"Broken "+strings.Repeat("!", 200)+"\"\n", 0o644)
	}
	h.run(nil)
	next := func(extensions int) {
		t.Helper()
		for {
			m, err := reports.NextMsg(time.Minute)
			if err != nil {
				t.Fatalf("no report with %d extensions: %v", extensions, err)
			}
			var r wire.Host
			if err := json.Unmarshal(m.Data, &r); err != nil {
				t.Fatal(err)
			}
			if r.Extensions == nil || len(r.Extensions) != extensions { // the previous report
				continue
			}
			if len(m.Data) > 512<<10 || len(r.Problems) == 0 || r.ProblemsLeftOut == 0 || len(r.Problems)+r.ProblemsLeftOut < broken {
				t.Errorf("a report of %d bytes, with %d problems and %d left out", len(m.Data), len(r.Problems), r.ProblemsLeftOut)
			}
			return
		}
	}
	next(0)
	h.extension("talker", `"hi"`, "")
	h.control("reload", "{}")
	next(1)
}
