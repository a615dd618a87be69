package bridge_test

import (
	"errors"
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

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestInventory: a full inventory is published at the start, on request of a registry and of an operator, and after a
// reconnect. Changes are published as deltas, and the last one of a bridge that stops lists its instances as shut down.
func TestInventory(t *testing.T) {
	t.Parallel()
	var running atomic.Pointer[server.Server]
	start := func() {
		s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("the server does not come up")
		}
		running.Store(s)
	}
	stop := func() { running.Load().Shutdown(); running.Load().WaitForShutdown() }
	start()
	defer func() { stop() }()
	connect := func(admitted func() bool) *nats.Conn {
		dial := func() (net.Conn, error) {
			if !admitted() {
				return nil, errors.New("not yet")
			}
			return running.Load().InProcessConn()
		}
		nc, err := nats.Connect("", nats.InProcessServer(dialer(dial)),
			nats.Timeout(time.Minute), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}

	// The bridge reconnects last: NATS drops what it publishes before the subscriber is there.
	var bridgeWaits atomic.Bool
	h := &host{t: t, dir: t.TempDir(), nc: connect(func() bool { return !bridgeWaits.Load() })}
	h.extension("talker", `"hi"`, "")
	registry := connect(func() bool { return true })
	f := follow(t, registry)
	halt := h.run(nil)
	f.wait("talker", "is ready", func(i wire.InventoryInstance) bool {
		return i.State == heartbeat.Ready && i.HandshakeHash != "" && i.Breaker.State == heartbeat.BreakerClosed && i.Host == "h1"
	})
	before := f.has(wire.InventoryFull)
	if err := registry.Publish(wire.Prefix("ext").AnnounceRequest(), nil); err != nil {
		t.Fatal(err)
	}
	f.fulls(before+1, "the full inventory that was requested")
	before = f.has(wire.InventoryFull)
	got := h.control("inventory", "{}")
	f.waitFor("the run and number of the answer", func() bool {
		return strings.Contains(got, `"seq":`) && strings.Contains(got, fmt.Sprintf(`"run":%q`, f.run))
	})
	f.fulls(before+1, "the full inventory that was requested on the control subject")

	before = f.has(wire.InventoryFull)
	bridgeWaits.Store(true)
	stop()
	start()
	eventually(t, "the subscriber is there", func() bool { return registry.Stats().Reconnects == 1 && registry.Flush() == nil }, nil)
	bridgeWaits.Store(false)
	f.fulls(before+1, "a full inventory after a reconnect")
	if err := halt(); err != nil {
		t.Error(err)
	}
	f.wait("talker", "is shut down", func(i wire.InventoryInstance) bool { return i.State == heartbeat.Shutdown })
}

// has returns the number of messages of a kind.
func (f *follower) has(kind wire.InventoryKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[kind]
}

type dialer func() (net.Conn, error)

func (d dialer) InProcessConn() (net.Conn, error) { return d() }

// TestInventoryOfReload: services that run elsewhere and skills are listed as long as their files exist, and an extension
// until its process has ended.
func TestInventoryOfReload(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := follow(t, h.nc)
	path := filepath.Join(h.dir, "ext", "elsewhere", "plugin.toml")
	h.write(path, "[plugin]\nid = \"elsewhere\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"nats\"\n", 0o644)
	skill := filepath.Join(h.dir, "skills", "pour", "SKILL.md")
	h.write(skill, "---\nname: Pour\ndescription: Pours tea.\n---\nPour it.\n", 0o644)
	h.extension("talker", `"hi"`, "")
	h.run(func(c *bridge.Config) { c.Settings.SkillsDir = filepath.Join(h.dir, "skills") })
	f.wait("talker", "is ready", func(i wire.InventoryInstance) bool { return i.State == heartbeat.Ready })
	f.wait("elsewhere", "is declared", func(i wire.InventoryInstance) bool { return i.Instance == "" && i.State == "" && i.Bridge == "" })
	f.waitFor("the skill", func() bool { return f.skills["pour"].Name == "Pour" })
	for _, p := range []string{path, skill, filepath.Join(h.dir, "ext", "talker", "plugin.toml")} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	h.control("reload", "{}")
	f.waitFor("an empty inventory", func() bool { return len(f.entries) == 0 && len(f.skills) == 0 })
}

// TestInventoryOfManyProblems: a host with a thousand broken manifests publishes its inventory, and updates it after a
// change.
func TestInventoryOfManyProblems(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := follow(t, h.nc)
	const broken = 1000 // with several faults each
	for n := range broken {
		h.write(filepath.Join(h.dir, "ext", fmt.Sprint("broken", n), "plugin.toml"), "[plugin]\nid = \"Broken "+strings.Repeat("!", 200)+"\"\n", 0o644)
	}
	h.run(func(c *bridge.Config) { c.Logger = nil })
	enough := func() bool {
		return len(f.host.Problems) > 0 && f.host.ProblemsLeftOut > 0 && len(f.host.Problems)+f.host.ProblemsLeftOut >= broken
	}
	f.waitFor("the problems", enough)
	h.extension("talker", `"hi"`, "")
	h.control("reload", "{}")
	f.wait("talker", "is ready", func(i wire.InventoryInstance) bool { return i.State == heartbeat.Ready && enough() })
}
