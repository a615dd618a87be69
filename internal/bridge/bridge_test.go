package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestReload(t *testing.T) {
	h := newHost(t)
	h.extension("stays", `"stays"`, "")
	h.extension("changes", `"old"`, "")
	h.extension("goes", `"goes"`, "")
	h.extension("breaks", `"breaks"`, "")
	h.run(nil)
	for id, want := range map[string]string{"stays": `"stays"`, "changes": `"old"`, "goes": `"goes"`, "breaks": `"breaks"`} {
		h.says(id, want)
	}
	before := h.control("status", "{}")

	h.extension("changes", `"new"`, "# another manifest\n")
	h.extension("comes", `"comes"`, "")
	h.write(filepath.Join(h.dir, "ext", "breaks", "plugin.toml"), "[plugin\n", 0o644)
	if err := os.RemoveAll(filepath.Join(h.dir, "ext", "goes")); err != nil {
		t.Fatal(err)
	}
	if got, want := h.control("reload", "{}"), `{"jsonrpc":"2.0","id":1,"result":{"replaced":["changes"],"started":["comes"],"stopped":["goes"]}}`; got != want {
		t.Errorf("reload = %s, want %s", got, want)
	}
	h.says("changes", `"new"`)
	h.says("comes", `"comes"`)
	h.says("stays", `"stays"`)
	h.says("breaks", `"breaks"`)
	h.gone("goes")
	if after := h.control("status", "{}"); instanceOf(t, before, "stays") != instanceOf(t, after, "stays") {
		t.Error("an extension that did not change was restarted")
	}
	if !strings.Contains(h.log.String(), "its manifest is broken; the extension goes on as it was") {
		t.Error("nobody was told of the broken manifest")
	}
}

func instanceOf(t *testing.T, status, id string) string {
	t.Helper()
	var r struct {
		Result bridge.Status
	}
	if err := json.Unmarshal([]byte(status), &r); err != nil {
		t.Fatal(err)
	}
	for _, i := range r.Result.Instances {
		if i.ID == id {
			return i.Instance
		}
	}
	t.Fatalf("no %s in %s", id, status)
	return ""
}

func TestWatchReloads(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"one"`, "")
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
	})
	h.says("one", `"one"`)
	h.extension("two", `"two"`, "")
	h.says("two", `"two"`)
	if err := os.RemoveAll(filepath.Join(h.dir, "ext", "one")); err != nil {
		t.Fatal(err)
	}
	h.gone("one")
}

// TestWatchMoves watches where the settings say after a reload.
func TestWatchMoves(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"one"`, "")
	elsewhere := filepath.Join(h.dir, "elsewhere")
	if err := os.Mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
		moved := c.Settings
		moved.SearchPaths = []string{elsewhere}
		c.Reread = func() (config.Config, error) { return moved, nil }
	})
	h.says("one", `"one"`)
	h.control("reload", "{}")
	h.gone("one")
	if err := os.Rename(filepath.Join(h.dir, "ext", "one"), filepath.Join(elsewhere, "one")); err != nil {
		t.Fatal(err)
	}
	h.says("one", `"one"`)
}

// TestWatchChanges has a change taken over by a reload that also finds other settings to watch by: its search goes on to
// its end. There is much to be searched, so that it would hardly end by chance.
func TestWatchChanges(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"one"`, "")
	for n := range 1000 {
		if err := os.MkdirAll(filepath.Join(h.dir, "ext", "many", fmt.Sprint(n)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
		changed := c.Settings
		changed.IgnoreDirs = append([]string{"nothing-of-this-name"}, changed.IgnoreDirs...)
		c.Reread = func() (config.Config, error) { return changed, nil }
	})
	h.says("one", `"one"`)
	h.extension("two", `"two"`, "")
	h.says("two", `"two"`)
	if strings.Contains(h.log.String(), "cut short") { // looked at before the test's end cuts one short
		t.Error("the search was cut short")
	}
}

// TestWatchMissesNothing adds an extension when the first search is over and nothing is watched yet.
func TestWatchMissesNothing(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"one"`, "[requires]\nbins = [\"sh\"]\n")
	var once sync.Once
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
		c.Gate.LookPath = func(file string) (string, error) {
			once.Do(func() { h.extension("two", `"two"`, "") })
			return exec.LookPath(file)
		}
	})
	h.says("two", `"two"`)
	h.says("one", `"one"`)
}

func TestControl(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"one"`, "")
	h.run(nil)
	h.says("one", `"one"`)
	for _, tt := range []struct{ method, params, want string }{
		{"ping", "{}", `"result":{"run":"`},
		{"restart", `{"id":"one"}`, `"instances":["`},
		{"restart", `{"id":"nobody"}`, `runs no extension \"nobody\"`},
		{"restart", `{}`, `wants params`},
		{"explode", `{"id":"one"}`, `-32601`},
		{"logs", `{"id":"one"}`, `"lines":[`},
	} {
		if got := h.control(tt.method, tt.params); !strings.Contains(got, tt.want) {
			t.Errorf("%s %s = %s, want %s", tt.method, tt.params, got, tt.want)
		}
	}
	h.says("one", `"one"`)
	if got := h.control("drain", `{"id":"one"}`); !strings.Contains(got, "instances") {
		t.Errorf("drain = %s", got)
	}
	h.gone("one")
	if got := h.control("status", "{}"); !strings.Contains(got, `"state":"draining","reason":"asked to drain"`) {
		t.Errorf("status = %s", got)
	}
	if got := h.control("status", `{"id":"nobody"}`); !strings.Contains(got, `"instances":[]`) {
		t.Errorf("status of nobody = %s", got)
	}
	h.control("restart", `{"id":"one"}`)
	h.says("one", `"one"`)

	h.refusesASecond()
}

// TestDrainStays drains an extension that then dies, and one that is not ready yet: neither takes a call before it is
// asked to restart.
func TestDrainStays(t *testing.T) {
	h := newHost(t)
	h.extension("dies", `"back"`, "")
	h.extension("late", `"back"`, "")
	h.write(filepath.Join(h.dir, "ext", "late", "go"), "", 0o644)
	late := filepath.Join(h.dir, "ext", "late", "say.sh")
	script, err := os.ReadFile(late)
	if err != nil {
		t.Fatal(err)
	}
	h.write(late, strings.Replace(string(script), "#!/bin/sh\n", "#!/bin/sh\nwhile [ -e go ]; do sleep 0.01; done\n", 1), 0o755)
	announced, err := h.nc.SubscribeSync("ext.registry.announce.late")
	if err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	h.says("dies", `"back"`)
	instance := func(id string) (i bridge.InstanceStatus) {
		var r struct{ Result bridge.Status }
		if err := json.Unmarshal([]byte(h.control("status", fmt.Sprintf(`{"id":%q}`, id))), &r); err != nil || len(r.Result.Instances) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Result.Instances[0]
	}
	h.control("drain", `{"id":"late"}`)
	if err := os.Remove(filepath.Join(h.dir, "ext", "late", "go")); err != nil {
		t.Fatal(err)
	}
	for a := (mesh.Announce{}); a.HandshakeHash == ""; {
		m, err := announced.NextMsg(15 * time.Second)
		if err != nil {
			t.Fatalf("the late one does not shake hands: %v", err)
		}
		if err := json.Unmarshal(m.Data, &a); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it is said to be ready", func() bool { return strings.Contains(h.log.String(), "extension ready\" extension=dies") }, nil)
	h.control("drain", `{"id":"dies"}`)
	h.gone("dies")
	if p, err := os.FindProcess(instance("dies").PID); err != nil || p.Kill() != nil {
		t.Fatal("it cannot be killed")
	}
	eventually(t, "its end is known", func() bool { i := instance("dies"); return i.LastExit != nil && i.PID == 0 }, nil)
	for _, id := range []string{"dies", "late"} {
		h.gone(id)
		if i := instance(id); i.State != heartbeat.Draining || i.Reason != "asked to drain" {
			t.Errorf("%s is %s, %s", id, i.State, i.Reason)
		}
	}
	if strings.Count(h.log.String(), "extension ready\" extension=dies") != 1 {
		t.Error("the one that died was started again")
	}
	for _, id := range []string{"dies", "late"} {
		beats := make(chan *nats.Msg, 100)
		if _, err := h.nc.ChanSubscribe("ext.registry.heartbeat."+id, beats); err != nil {
			t.Fatal(err)
		}
		h.control("restart", fmt.Sprintf(`{"id":%q}`, id))
		h.says(id, `"back"`)
		for b := (heartbeat.Beat{}); b.State != heartbeat.Ready; {
			if err := json.Unmarshal((<-beats).Data, &b); err != nil {
				t.Fatal(err)
			}
			if b.Restarts > 1 {
				t.Errorf("%s is %s after %d restarts, want 1", id, b.State, b.Restarts)
			}
		}
	}
}

// TestGatedAndBroken starts a host on which not everything can run: what can does, and the host says why the
// rest does not.
func TestGatedAndBroken(t *testing.T) {
	h := newHost(t)
	reports := make(chan *nats.Msg, 10)
	if _, err := h.nc.ChanSubscribe("ext.registry.host.b1", reports); err != nil {
		t.Fatal(err)
	}
	h.extension("good", `"good"`, "")
	h.extension("gated", `"never"`, "[requires]\nbins = [\"no-such-program\"]\nenv = [\"NO_SUCH_VARIABLE\"]\n")
	h.write(filepath.Join(h.dir, "ext", "broken", "plugin.toml"), "[plugin]\nid = \"Broken\"\nversion = \"1\"\n", 0o644)
	h.extension("missing", `"never"`, "")
	if err := os.Remove(filepath.Join(h.dir, "ext", "missing", "say.sh")); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	h.says("good", `"good"`)
	var report mesh.Host
	if err := json.Unmarshal((<-reports).Data, &report); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%+v", report)
	for _, want := range []string{"no-such-program", "NO_SUCH_VARIABLE", "line 2, column", "plugin.version"} {
		if !strings.Contains(text, want) {
			t.Errorf("the host's report lacks %q: %s", want, text)
		}
	}
	eventually(t, "the missing program is an error", func() bool {
		return strings.Contains(h.control("status", "{}"), "say.sh")
	}, func() string { return h.control("status", "{}") })
	h.gone("gated")
	h.control("drain", `{"id":"gated"}`)
	if got := h.control("status", `{"id":"gated"}`); !strings.Contains(got, `"state":"gated"`) {
		t.Errorf("drained, the gated one is %s", got)
	}
	for range 2 { // what is known is not said again
		h.control("reload", "{}")
	}
	for msg, want := range map[string]int{
		`msg="manifest refused" path=` + filepath.Join(h.dir, "ext", "broken", "plugin.toml") + ` line=2 column=1 key=plugin.id error="`: 1,
		"extension skipped: declared preconditions not satisfied":                                                                        1,
	} {
		if n := strings.Count(h.log.String(), msg); n != want {
			t.Errorf("%q is in the log %d times, want %d", msg, n, want)
		}
	}
}

// TestRestartsAreTold counts the restarts of a child that never becomes ready, although its state and the reason stay
// as they are.
func TestRestartsAreTold(t *testing.T) {
	h := newHost(t)
	beats := make(chan *nats.Msg, 100)
	if _, err := h.nc.ChanSubscribe("ext.registry.heartbeat.silent", beats); err != nil {
		t.Fatal(err)
	}
	h.extension("silent", `"never"`, "")
	h.write(filepath.Join(h.dir, "ext", "silent", "say.sh"), "#!/bin/sh\nexec sleep 60\n", 0o755)
	h.run(func(c *bridge.Config) {
		c.Settings.Supervision.HandshakeTimeout = 200 * time.Millisecond
		c.Settings.Supervision.BaseBackoff = time.Millisecond
		c.Settings.Supervision.ShutdownGrace = time.Millisecond
	})
	for deadline := time.After(10 * time.Second); ; {
		var b heartbeat.Beat
		select {
		case m := <-beats:
			if err := json.Unmarshal(m.Data, &b); err != nil {
				t.Fatal(err)
			}
		case <-deadline:
			t.Fatal("no beat counts a restart")
		}
		if b.State == heartbeat.Restarting && b.Restarts >= 2 { // two at once may be one beat
			return
		}
	}
}

// TestExitedInFlight kills a child with a call in flight: the call fails at once, with the status. What the child wrote
// to stderr is for operators.
func TestExitedInFlight(t *testing.T) {
	h := newHost(t)
	h.extension("dies", `"'; echo last words >&2; kill -9 $$; r='"`, "")
	h.run(nil)
	client := mesh.NewClient(h.nc, mesh.ClientOptions{})
	eventually(t, "dies is up", func() bool {
		_, err := client.CallExt(t.Context(), "dies", "ping", nil)
		return err == nil
	}, nil)
	_, err := client.Call(t.Context(), "dies/say", nil)
	d := rpc.AsError(err).Details()
	if !errors.Is(err, rpc.CodeExited) || d.Status != "signal SIGKILL" || d.Ran != rpc.RanMaybe {
		t.Errorf("error %v, %+v", err, d)
	}
	if told := err.Error() + string(rpc.AsError(err).Data); strings.Contains(told, "last words") {
		t.Errorf("the caller got what the child wrote to stderr: %s", told)
	}
	eventually(t, "operators get it", func() bool {
		return strings.Contains(h.control("status", `{"id":"dies"}`), `"stderr_tail":"last words\n"`) &&
			strings.Contains(h.control("logs", `{"id":"dies"}`), "last words")
	}, func() string { return h.control("status", `{"id":"dies"}`) })
}

// TestHandshakeNamesTheStep has a child that answers initialize and not tools/list, behind a line that is no message: the
// reason has both. A child that exits during its handshake is named with its status and its line.
func TestHandshakeNamesTheStep(t *testing.T) {
	h := newHost(t)
	const answer = `IFS= read -r line
printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}\n'
`
	for id, script := range map[string]string{
		"halts": "#!/bin/sh\necho Loading the model\n" + answer + "exec sleep 600\n",
		"exits": "#!/bin/sh\necho Loading the model\n" + answer + "exit 7\n",
	} {
		h.extension(id, "{}", "")
		h.write(filepath.Join(h.dir, "ext", id, "say.sh"), script, 0o755)
	}
	h.extension("one", `"one"`, "")
	h.run(func(c *bridge.Config) {
		c.Settings.Supervision.HandshakeTimeout = 3 * time.Second
		c.Settings.Supervision.ShutdownGrace = time.Millisecond
	})
	h.says("one", `"one"`)
	for id, want := range map[string][]string{
		"halts": {"did not answer tools/list within 3s", "Loading the model", "not a message"},
		"exits": {"exit status 7", "Loading the model", "not a message"},
	} {
		var got string
		eventually(t, id+" has its reason", func() bool {
			got = h.control("status", fmt.Sprintf(`{"id":%q}`, id))
			for _, text := range want {
				if !strings.Contains(got, text) {
					return false
				}
			}
			return true
		}, func() string { return got })
	}
}

// TestHalfAnAnswer has a child write half of its answer and exit: the call fails with the status, not as broken JSON.
func TestHalfAnAnswer(t *testing.T) {
	h := newHost(t)
	h.extension("half", `"'; printf '{"jsonrpc":"2.0","id":%s,"result":{"a":' "$id"; exit 9; r='"`, "")
	h.run(nil)
	client := mesh.NewClient(h.nc, mesh.ClientOptions{})
	eventually(t, "half is up", func() bool {
		_, err := client.CallExt(t.Context(), "half", "ping", nil)
		return err == nil
	}, nil)
	_, err := client.Call(t.Context(), "half/say", nil)
	if d := rpc.AsError(err).Details(); !errors.Is(err, rpc.CodeExited) || d.Status != "exit status 9" || d.Ran != rpc.RanMaybe {
		t.Errorf("error %v, %+v", err, d)
	}
}
