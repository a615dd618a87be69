package bridge_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/bridge"
)

// TestRemovedAndAddedAgain: an extension that returns while its old process is still stopping starts after that.
func TestRemovedAndAddedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	log, goOn := filepath.Join(h.dir, "log"), filepath.Join(h.dir, "go-on")
	h.extension("lingers", `"here"`, "")
	dir := filepath.Join(h.dir, "ext", "lingers")
	script, err := os.ReadFile(filepath.Join(dir, "say.sh"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(script), "\n", "\necho begin >>"+log+"\n", 1) + "while [ ! -e " + goOn + " ]; do sleep 0.01; done\necho end >>" + log + "\n"
	h.write(filepath.Join(dir, "say.sh"), text, 0o755)
	h.run(func(c *bridge.Config) { c.Settings.Supervision.ShutdownGrace = time.Minute })
	h.answers("lingers", `"here"`)
	manifest, away := filepath.Join(dir, "plugin.toml"), filepath.Join(dir, "away")
	for _, move := range []struct{ from, to, want string }{
		{manifest, away, `"stopped":["lingers"]`},
		{away, manifest, `"started":["lingers"]`},
		{manifest, away, `"stopped":["lingers"]`},
		{away, manifest, `"started":["lingers"]`},
	} {
		if err := os.Rename(move.from, move.to); err != nil {
			t.Fatal(err)
		}
		if got := h.control("reload", "{}"); !strings.Contains(got, move.want) {
			t.Fatalf("reload = %s, want %s", got, move.want)
		}
	}
	h.write(goOn, "", 0o644)
	processes := func() string {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// The old process may take calls for a moment after the response to reload.
	eventually(t, "a second process starts", func() bool { return strings.Count(processes(), "begin") == 2 }, processes)
	h.answers("lingers", `"here"`)
	if got := processes(); got != "begin\nend\nbegin\n" {
		t.Errorf("the log of its processes: %q", got)
	}
}

// TestConcurrentReloads: a reload is not refused while another one is running, nor directly after the response to one.
func TestConcurrentReloads(t *testing.T) {
	h := newHost(t)
	h.run(nil)
	eventually(t, "it runs", func() bool {
		m, err := h.nc.Request("ext.control.b1", []byte(`{"jsonrpc":"2.0","id":1,"method":"reload"}`), time.Minute)
		return err == nil && strings.Contains(string(m.Data), `"result"`)
	}, func() string { return h.log.String() })
	var askers sync.WaitGroup
	for range 8 {
		askers.Go(func() { // owned here
			for range 50 {
				m, err := h.nc.Request("ext.control.b1", []byte(`{"jsonrpc":"2.0","id":1,"method":"reload"}`), time.Minute)
				if err != nil || !strings.Contains(string(m.Data), `"result"`) {
					t.Errorf("reload = %v, %v", m, err)
					return
				}
			}
		})
	}
	askers.Wait()
}

// TestRepliesOnlyToInboxes: a request's reply subject cannot make a bridge publish on a subject of the mesh or the server.
func TestRepliesOnlyToInboxes(t *testing.T) {
	h := newHost(t)
	h.run(nil)
	eventually(t, "the bridge responds", func() bool {
		_, err := h.nc.Request("ext.control.b1", []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), time.Second)
		return err == nil
	}, func() string { return h.log.String() })
	received, err := h.nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{"ext.registry.heartbeat.ghost", "$KV.ext_catalog.lease.registry", "inbox"} {
		if err := h.nc.PublishRequest("ext.control.b1", reply, []byte(`{"jsonrpc":"2.0","id":"ghost","method":"ping"}`)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := received.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		switch m.Subject {
		case "inbox": // the last message; the others were received before it
			return
		case "ext.registry.heartbeat.ghost", "$KV.ext_catalog.lease.registry":
			t.Errorf("it published on %s", m.Subject)
		}
	}
}

// TestTooLargeResponse: a request gets an error if the response exceeds the maximum message size.
func TestTooLargeResponse(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(o *server.Options) { o.MaxPayload = 4 << 10 })
	h.extension("talker", `"here"`, "")
	script := filepath.Join(h.dir, "ext", "talker", "say.sh")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	h.write(script, strings.Replace(string(text), "\n", "\ni=0; while [ $i -lt 100 ]; do echo a line of some length, number $i >&2; i=$((i+1)); done\n", 1), 0o755)
	h.run(nil)
	h.answers("talker", `"here"`)
	var got string
	eventually(t, "all lines are too large", func() bool {
		got = h.control("logs", `{"id":"talker"}`)
		return strings.Contains(got, `"kind":"too_large"`)
	}, func() string { return got })
	eventually(t, "the last three lines are returned", func() bool {
		got = h.control("logs", `{"id":"talker","lines":3}`)
		return strings.Contains(got, "number 99")
	}, func() string { return got })
}
