package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestReload(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("stays", `"stays"`, "")
	h.extension("changes", `"old"`, "")
	h.extension("goes", `"goes"`, "")
	h.extension("breaks", `"breaks"`, "")
	h.extension("updated", `"old"`, "")
	h.run(nil)
	for id, want := range map[string]string{"stays": `"stays"`, "updated": `"old"`, "changes": `"old"`, "goes": `"goes"`, "breaks": `"breaks"`} {
		h.answers(id, want)
	}
	before := h.control("status", "{}")

	h.extension("changes", `"new"`, "# another manifest\n")
	h.extension("comes", `"comes"`, "")
	h.write(filepath.Join(h.dir, "ext", "breaks", "plugin.toml"), "[plugin\n", 0o644)
	if err := os.RemoveAll(filepath.Join(h.dir, "ext", "goes")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(h.dir, "ext", "updated"), filepath.Join(h.dir, "before")); err != nil { // as an installation does
		t.Fatal(err)
	}
	h.extension("updated", `"new"`, "") // the same manifest
	if got, want := h.control("reload", "{}"), `"started":["comes"],"replaced":["changes","updated"],"stopped":["goes"],`; !strings.Contains(got, want) {
		t.Errorf("reload = %s, want %s", got, want)
	}
	h.answers("changes", `"new"`)
	h.answers("updated", `"new"`)
	h.answers("comes", `"comes"`)
	h.answers("stays", `"stays"`)
	h.answers("breaks", `"breaks"`)
	h.waitGone("goes")
	if after := h.control("status", "{}"); instanceOf(t, before, "stays") != instanceOf(t, after, "stays") {
		t.Error("an extension that did not change was restarted")
	}
	if !strings.Contains(h.log.String(), "the extension keeps running with its previous manifest") {
		t.Error("the broken manifest is not logged")
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

// TestReloadKeepsDrain: what an operator has drained stays so if a reload replaces it, until a restart.
func TestReloadKeepsDrain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("changes", `"old"`, "")
	h.run(nil)
	h.answers("changes", `"old"`)
	h.control("drain", `{"id":"changes"}`)
	h.waitGone("changes")
	h.extension("changes", `"new"`, "# another manifest\n")
	if got, want := h.control("reload", "{}"), `"replaced":["changes"]`; !strings.Contains(got, want) {
		t.Fatalf("reload = %s, want %s", got, want)
	}
	for range 3 {
		if got := h.control("status", `{"id":"changes"}`); !strings.Contains(got, `"state":"draining"`) {
			t.Fatalf("after the reload: %s", got)
		}
		if got := request(h.nc, "ext.changes.rpc", "tools/say", "{}"); got != nats.ErrNoResponders.Error() {
			t.Fatalf("after the reload: %s", got)
		}
	}
	away := filepath.Join(h.dir, "away") // as in a deployment that removes the directory before it copies the new one
	if err := os.Rename(filepath.Join(h.dir, "ext", "changes"), away); err != nil {
		t.Fatal(err)
	}
	h.control("reload", "{}")
	if err := os.Rename(away, filepath.Join(h.dir, "ext", "changes")); err != nil {
		t.Fatal(err)
	}
	if got := h.control("reload", "{}"); !strings.Contains(got, `"started":["changes"]`) || !strings.Contains(h.control("status", `{"id":"changes"}`), `"state":"draining"`) {
		t.Fatalf("after its return: %s, %s", got, h.control("status", `{"id":"changes"}`))
	}
	if got := h.control("restart", `{"id":"changes","instance":"other"}`); !strings.Contains(got, `does not run the instance \"other\" of changes`) {
		t.Errorf("an unknown instance: %s", got)
	}
	if got := h.control("explode", "{}"); !strings.Contains(got, "-32601") {
		t.Errorf("an unknown method: %s", got)
	}
	h.control("restart", `{"id":"changes"}`)
	h.answers("changes", `"new"`)
}

// TestRotatedFile: a restart uses the present content of the files to which a manifest refers.
func TestRotatedFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"'$TOKEN'"`, "env = {TOKEN = \"${file:token}\"}\n")
	token := filepath.Join(h.dir, "ext", "one", "token")
	h.write(token, "first", 0o600)
	h.run(nil)
	h.answers("one", `"first"`)
	h.write(token, "second", 0o600)
	h.control("restart", `{"id":"one"}`)
	h.answers("one", `"second"`)
}

// TestRotatedHeader: an HTTP server accepts initialize and ping without credentials, and refuses calls with those that have
// expired. The bridge uses the new ones as soon as they are in the file.
func TestRotatedHeader(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // of this test
		if strings.Contains(string(body), "tools/say") && r.Header.Get("X") != "second" {
			http.Error(w, "expired", http.StatusUnauthorized)
			return
		}
		var request struct{ ID json.RawMessage }
		_ = json.Unmarshal(body, &request)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"server_version":"1","tools":[{"name":"say"}]}}`, request.ID)
	}))
	t.Cleanup(srv.Close)
	h := newHost(t)
	token := filepath.Join(h.dir, "ext", "one", "token")
	h.write(token, "first", 0o600)
	h.write(filepath.Join(h.dir, "ext", "one", "plugin.toml"), fmt.Sprintf(
		"[plugin]\nid = \"one\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"http\"\nurl = %q\nheaders = { X = \"${file:token}\" }\n", srv.URL), 0o644)
	h.run(nil)
	say := func() string {
		m, err := h.nc.Request("ext.one.rpc", []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/say","params":{}}`), time.Second)
		if err != nil {
			return err.Error()
		}
		return string(m.Data)
	}
	eventually(t, "the call is refused", func() bool { return strings.Contains(say(), "401 Unauthorized") }, nil)
	h.write(token, "second", 0o600)
	eventually(t, "the call is answered", func() bool { return strings.Contains(say(), "server_version") }, nil)
}

// TestStateDirAgain: each run has a state directory, and a PWD that is its working directory.
func TestStateDirAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const inherited = `{ [ ! -e /proc/$$/environ ] || tr "\0" "\n" </proc/$$/environ | grep -qx "PWD=$(pwd -P)"; }` // the shell corrects its own
	h.extension("one", `"'$([ -d "$EXTMESH_STATE_DIR" ] && `+inherited+` && echo fine)'"`, "")
	h.run(func(c *bridge.Config) { c.Environ = append(c.Environ, "PWD=/elsewhere") })
	h.answers("one", `"fine"`)
	if err := os.RemoveAll(filepath.Join(h.dir, "state", "one")); err != nil {
		t.Fatal(err)
	}
	h.control("restart", `{"id":"one"}`)
	h.answers("one", `"fine"`)
}

// TestFewerReplicas: after the number of replicas was reduced, the one that is left takes calls, unless all were drained.
func TestFewerReplicas(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"here"`, "")
	h.run(func(c *bridge.Config) {
		fewer := c.Settings
		c.Settings.Supervision.Replicas = 2
		c.Reread = func() (config.Config, error) { return fewer, nil }
	})
	h.answers("one", `"here"`)
	var status struct{ Result bridge.Status }
	if err := json.Unmarshal([]byte(h.control("status", `{"id":"one"}`)), &status); err != nil || len(status.Result.Instances) != 2 {
		t.Fatalf("%+v, %v", status, err)
	}
	h.control("drain", fmt.Sprintf(`{"id":"one","instance":%q}`, status.Result.Instances[0].Instance))
	if got := h.control("reload", "{}"); !strings.Contains(got, `"replaced":["one"]`) {
		t.Fatalf("reload: %s", got)
	}
	h.answers("one", `"here"`)
	if got := h.control("status", `{"id":"one"}`); strings.Count(got, `"instance"`) != 1 || strings.Contains(got, "drain") {
		t.Errorf("status: %s", got)
	}
}

func TestWatchReloads(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"one"`, "")
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
	})
	h.answers("one", `"one"`)
	h.extension("two", `"two"`, "")
	h.answers("two", `"two"`)
	if err := os.RemoveAll(filepath.Join(h.dir, "ext", "one")); err != nil {
		t.Fatal(err)
	}
	h.waitGone("one")
}

// TestWatchOtherDirectory: after a reload, the bridge watches the directories of the new settings.
func TestWatchOtherDirectory(t *testing.T) {
	t.Parallel()
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
	h.answers("one", `"one"`)
	h.control("reload", "{}")
	h.waitGone("one")
	if err := os.Rename(filepath.Join(h.dir, "ext", "one"), filepath.Join(elsewhere, "one")); err != nil {
		t.Fatal(err)
	}
	h.answers("one", `"one"`)
}

// TestWatchWithBrokenSettings: an extension that is added while the settings cannot be read is started with the previous ones.
func TestWatchWithBrokenSettings(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"one"`, "")
	h.run(func(c *bridge.Config) {
		c.Settings.Watch = config.Watch{Enabled: true, Reload: true, Debounce: 50 * time.Millisecond}
		c.Reread = func() (config.Config, error) { return config.Config{}, errors.New("line 3: a typo") }
	})
	h.answers("one", `"one"`)
	h.extension("two", `"two"`, "")
	h.answers("two", `"two"`)
	if got := h.control("reload", "{}"); !strings.Contains(got, "a typo") {
		t.Errorf("reload: %s", got)
	}
}

// TestReloadChangesWatch: a reload that a change causes, and that also changes the settings for watching, completes its
// search. The directory is large, so that the search would hardly complete by chance.
func TestReloadChangesWatch(t *testing.T) {
	t.Parallel()
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
	h.answers("one", `"one"`)
	h.extension("two", `"two"`, "")
	h.answers("two", `"two"`)
	if strings.Contains(h.log.String(), "cut short") { // checked before the end of the test cuts a search short
		t.Error("the search was cut short")
	}
}

// TestChangeBeforeWatch adds an extension after the first search and before the watch starts.
func TestChangeBeforeWatch(t *testing.T) {
	t.Parallel()
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
	h.answers("two", `"two"`)
	h.answers("one", `"one"`)
}

func TestControl(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"one"`, "")
	h.run(nil)
	h.answers("one", `"one"`)
	for _, tt := range []struct{ method, params, want string }{
		{"ping", "{}", `"result":{"run":"`},
		{"restart", `{"id":"one"}`, `"instances":["`},
		{"restart", `{"id":"unknown"}`, `runs no extension \"unknown\"`},
		{"restart", `{}`, `requires params`},
		{"explode", `{"id":"one"}`, `-32601`},
		{"logs", `{"id":"one"}`, `"lines":[`},
	} {
		if got := h.control(tt.method, tt.params); !strings.Contains(got, tt.want) {
			t.Errorf("%s %s = %s, want %s", tt.method, tt.params, got, tt.want)
		}
	}
	h.answers("one", `"one"`)
	if got := h.control("drain", `{"id":"one"}`); !strings.Contains(got, "instances") {
		t.Errorf("drain = %s", got)
	}
	h.waitGone("one")
	if got := h.control("status", "{}"); !strings.Contains(got, `"state":"draining","reason":"drain requested"`) {
		t.Errorf("status = %s", got)
	}
	if got := h.control("status", `{"id":"unknown"}`); !strings.Contains(got, `"instances":[]`) {
		t.Errorf("status of an unknown extension = %s", got)
	}
	h.control("restart", `{"id":"one"}`)
	h.answers("one", `"one"`)

	h.refusesSecondBridge()
}

// TestDrainPersists drains an extension that then crashes, and one that is not ready yet: neither takes a call until it is
// restarted.
func TestDrainPersists(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("crashes", `"back"`, "")
	h.extension("late", `"back"`, "")
	h.write(filepath.Join(h.dir, "ext", "late", "go"), "", 0o644)
	late := filepath.Join(h.dir, "ext", "late", "say.sh")
	script, err := os.ReadFile(late)
	if err != nil {
		t.Fatal(err)
	}
	h.write(late, strings.Replace(string(script), "#!/bin/sh\n", "#!/bin/sh\nwhile [ -e go ]; do sleep 0.01; done\n", 1), 0o755)
	f := follow(t, h.nc)
	h.run(nil)
	h.answers("crashes", `"back"`)
	instance := func(id string) (i bridge.InstanceStatus) {
		var r struct{ Result bridge.Status }
		if err := json.Unmarshal([]byte(h.control("status", fmt.Sprintf(`{"id":%q}`, id))), &r); err != nil || len(r.Result.Instances) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Result.Instances[0]
	}
	eventually(t, "late runs", func() bool { return instance("late").PID != 0 }, nil) // a drain before the first run prevents it
	h.control("drain", `{"id":"late"}`)
	if err := os.Remove(filepath.Join(h.dir, "ext", "late", "go")); err != nil {
		t.Fatal(err)
	}
	f.wait("late", "performs its handshake", func(i wire.InventoryInstance) bool { return i.HandshakeHash != "" })
	eventually(t, "its readiness is logged", func() bool { return strings.Contains(h.log.String(), "extension ready\" extension=crashes") }, nil)
	h.control("drain", `{"id":"crashes"}`)
	h.waitGone("crashes")
	if p, err := os.FindProcess(instance("crashes").PID); err != nil || p.Kill() != nil {
		t.Fatal("cannot kill the process")
	}
	eventually(t, "its exit is recorded", func() bool { i := instance("crashes"); return i.LastExit != nil && i.PID == 0 }, nil)
	for _, id := range []string{"crashes", "late"} {
		h.waitGone(id)
		if i := instance(id); i.State != heartbeat.Draining || i.Reason != "drain requested" {
			t.Errorf("%s is %s, %s", id, i.State, i.Reason)
		}
	}
	if strings.Count(h.log.String(), "extension ready\" extension=crashes") != 1 {
		t.Error("the drained extension was started after its crash")
	}
	for _, id := range []string{"crashes", "late"} {
		h.control("restart", fmt.Sprintf(`{"id":%q}`, id))
		h.answers(id, `"back"`)
		f.wait(id, "is ready after at most one restart", func(i wire.InventoryInstance) bool { return i.State == heartbeat.Ready && i.Restarts <= 1 })
	}
}

// TestGatedAndBroken runs a host with broken and gated extensions: the others run, and the report and the log contain the
// problems.
func TestGatedAndBroken(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := follow(t, h.nc)
	h.extension("good", `"good"`, "")
	h.extension("gated", `"never"`, "[requires]\nbins = [\"no-such-program\"]\nenv = [\"NO_SUCH_VARIABLE\"]\n")
	h.write(filepath.Join(h.dir, "ext", "broken", "plugin.toml"), "[plugin]\nid = \"Broken\"\nversion = \"1\"\n", 0o644)
	h.extension("missing", `"never"`, "")
	if err := os.Remove(filepath.Join(h.dir, "ext", "missing", "say.sh")); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	h.answers("good", `"good"`)
	var text string
	f.waitFor("the inventory", func() bool { text = fmt.Sprintf("%+v", f.host); return true })
	for _, want := range []string{"no-such-program", "NO_SUCH_VARIABLE", "line 2, column", "plugin.version"} {
		if !strings.Contains(text, want) {
			t.Errorf("the host's report lacks %q: %s", want, text)
		}
	}
	eventually(t, "the missing program is an error", func() bool {
		return strings.Contains(h.control("status", "{}"), "say.sh")
	}, func() string { return h.control("status", "{}") })
	h.waitGone("gated")
	h.control("drain", `{"id":"gated"}`)
	if got := h.control("status", `{"id":"gated"}`); !strings.Contains(got, `"state":"gated"`) {
		t.Errorf("status of the gated extension after a drain: %s", got)
	}
	if got := h.control("restart", `{"id":"gated"}`); !strings.Contains(got, `"state":"gated"`) || !strings.Contains(got, "reload checks its requirements again") {
		t.Errorf("a restart of the gated extension: %s", got)
	}
	for range 2 { // a problem is logged only once
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

// TestRestartsAreReported counts the restarts of a child that never becomes ready, although its state and reason do not
// change.
func TestRestartsAreReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := follow(t, h.nc)
	h.extension("silent", `"never"`, "")
	h.write(filepath.Join(h.dir, "ext", "silent", "say.sh"), "#!/bin/sh\nexec sleep 60\n", 0o755)
	h.run(func(c *bridge.Config) {
		c.Settings.Supervision.HandshakeTimeout = 200 * time.Millisecond
		c.Settings.Supervision.BaseBackoff = time.Millisecond
		c.Settings.Supervision.ShutdownGrace = time.Millisecond
		c.Settings.Supervision.MaxRestarts = 1000
	})
	f.wait("silent", "was restarted twice", func(i wire.InventoryInstance) bool { return i.State == heartbeat.Restarting && i.Restarts >= 2 })
}

// TestExitedInFlight kills a child with a call in flight: the call fails immediately with the exit status. What the child
// wrote to stderr is shown only to operators.
func TestExitedInFlight(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("crashes", `"'; echo last words >&2; kill -9 $$; r='"`, "")
	h.run(nil)
	client := mesh.NewClient(h.nc, mesh.ClientOptions{})
	eventually(t, "crashes is up", func() bool {
		_, err := client.CallExt(t.Context(), "crashes", "ping", nil)
		return err == nil
	}, nil)
	_, err := client.Call(t.Context(), "crashes/say", nil)
	d := rpc.AsError(err).Details()
	if !errors.Is(err, rpc.CodeExited) || d.Status != "signal SIGKILL" || d.Ran != rpc.RanMaybe {
		t.Errorf("error %v, %+v", err, d)
	}
	if shown := err.Error() + string(rpc.AsError(err).Data); strings.Contains(shown, "last words") {
		t.Errorf("the caller got what the child wrote to stderr: %s", shown)
	}
	eventually(t, "the status and the logs contain it", func() bool {
		return strings.Contains(h.control("status", `{"id":"crashes"}`), `"stderr_tail":"last words\n"`) &&
			strings.Contains(h.control("logs", `{"id":"crashes"}`), "last words")
	}, func() string { return h.control("status", `{"id":"crashes"}`) })
	if exit := statusOf(t, h, "crashes").LastExit; exit.Reason != "" { // it was killed
		t.Errorf("%q is shown as the reason", exit.Reason)
	}
}

// TestHandshakeErrorNamesStep: the reason of a child that answers initialize but not tools/list contains that step and
// the line that it printed. The reason of a child that exits during its handshake contains its exit status and that line, or
// the error that it sent as a log message. The reason of a child that hangs contains an error that it wrote to standard error.
func TestHandshakeErrorNamesStep(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const answer = `IFS= read -r line
printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}\n'
`
	for id, script := range map[string]string{
		"halts": "#!/bin/sh\necho Loading the model\n" + answer + "exec sleep 600\n",
		"exits": "#!/bin/sh\necho Loading the model\n" + answer + "exit 7\n",
		"logs": "#!/bin/sh\necho Loading the model >&2\n" + answer +
			`echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"no credentials"}}'` + "\nexit 8\n",
		"hangs": "#!/bin/sh\necho 'TypeError: fetch failed' >&2\necho waiting >&2\nexec sleep 600\n",
	} {
		h.extension(id, "{}", "")
		h.write(filepath.Join(h.dir, "ext", id, "say.sh"), script, 0o755)
	}
	h.extension("one", `"one"`, "")
	h.run(func(c *bridge.Config) {
		c.Settings.Supervision.HandshakeTimeout = 3 * time.Second
		c.Settings.Supervision.ShutdownGrace = time.Millisecond
	})
	h.answers("one", `"one"`)
	for id, want := range map[string][]string{
		"halts": {"did not answer tools/list within 3s", "Loading the model", "not a message"},
		"exits": {"exit status 7", "stdout: Loading the model"},
		"hangs": {"did not answer initialize within 3s", "stderr: TypeError: fetch failed"},
		"logs":  {"exit status 8", "stdout: error: no credentials"},
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

// TestExitDuringResponse: a child writes half a response and exits. The call fails with the exit
// status, not as invalid JSON.
func TestExitDuringResponse(t *testing.T) {
	t.Parallel()
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

// TestReloadClientFile: a server added to an .mcp.json is started, and the others keep running.
func TestReloadClientFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write(filepath.Join(h.dir, "ext", "clients", "mcp.sh"), `#!/bin/sh
while IFS= read -r line; do
	id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\),.*/\1/p')
	case $line in
	*'"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
	*'"tools/list"'*) r='{"tools":[{"name":"say","inputSchema":{"type":"object"}}]}' ;;
	*) r='{"content":[{"type":"text","text":"'$1'"}]}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`, 0o755)
	file := filepath.Join(h.dir, "ext", "clients", ".mcp.json")
	h.write(file, `{"mcpServers": {"memory": {"command": "./mcp.sh", "args": [1]}, "changes": {"command": "./mcp.sh", "args": [2]}}}`, 0o644)
	h.run(nil)
	h.answers("clients.memory", `{"content":[{"type":"text","text":"1"}]}`)
	h.answers("clients.changes", `{"content":[{"type":"text","text":"2"}]}`)
	before := h.control("status", "{}")

	h.write(file, `{
  "mcpServers": { // now with a third one
    "memory": {"command": "./mcp.sh", "args": [1]}, "changes": {"command": "./mcp.sh", "args": [4]},
    "Git Hub": {"command": "./mcp.sh", "args": [3]}, "Event": {"command": "./mcp.sh", "args": [5]},
  },
}`, 0o644)
	h.control("reload", "{}")
	h.answers("clients.git-hub", `{"content":[{"type":"text","text":"3"}]}`)
	h.answers("clients.event-server", `{"content":[{"type":"text","text":"5"}]}`)
	h.answers("clients.changes", `{"content":[{"type":"text","text":"4"}]}`)
	if after := h.control("status", "{}"); instanceOf(t, before, "clients.memory") != instanceOf(t, after, "clients.memory") {
		t.Error("a server that did not change was restarted")
	}

	// A file that is being edited stops nothing.
	h.write(file, `{"mcpServers": {"memory": `, 0o644)
	h.control("reload", "{}")
	if after := h.control("status", "{}"); instanceOf(t, before, "clients.memory") != instanceOf(t, after, "clients.memory") {
		t.Error("a broken file restarts a server")
	}
	h.answers("clients.git-hub", `{"content":[{"type":"text","text":"3"}]}`)

	// Neither does a mistake in one server, nor a plugin.toml that is not complete.
	keeps := func(what string, ids ...string) {
		t.Helper()
		h.control("reload", "{}")
		after := h.control("status", "{}")
		for _, id := range []string{"clients.memory", "clients.changes", "clients.git-hub", "clients.event-server"} {
			if runs := strings.Contains(after, `"id":"`+id+`"`); runs != slices.Contains(ids, id) {
				t.Errorf("%s: %s runs: %v", what, id, runs)
			}
		}
	}
	h.write(file, `{"mcpServers": {"memory": {"command": "./mcp.sh", "args": [1]}, "changes": {"command": "./mcp.sh", "args": "4"}, "Git Hub": {"command": "a b"}, "Event": {"command": "a b"}}}`, 0o644)
	keeps("mistakes in three servers", "clients.memory", "clients.changes", "clients.git-hub", "clients.event-server")
	h.write(file, `{"mcpServers": {"memory": {"command": "./mcp.sh", "args": [1]}, "Git Hub": {"command": "a b"}, "old": {"type": "sse", "url": "https://example.com"}}}`, 0o644)
	keeps("one is removed while others have mistakes", "clients.memory", "clients.git-hub")
	own := filepath.Join(h.dir, "ext", "clients", "plugin.toml")
	h.write(own, "[plugin]\nid = \"clients\"\n", 0o644)
	keeps("an incomplete plugin.toml", "clients.memory", "clients.git-hub")
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}

	// Servers that are removed or switched off stop, the last one, too.
	h.write(file, `{"mcpServers": {"memory": {"command": "./mcp.sh", "args": [1]}}}`, 0o644)
	keeps("one is left", "clients.memory")
	h.write(file, `{"mcpServers": {"memory": {"command": "a b"}}}`, 0o644)
	keeps("a mistake in the only server", "clients.memory")
	h.write(file, `{"mcpServers": {"memory": {"command": "./mcp.sh", "args": [1], "disabled": true}}}`, 0o644)
	keeps("the last one is switched off")
}

// TestFileComesLater: a file to which a manifest refers, which another program writes after the bridge has started, is waited for.
func TestFileComesLater(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := follow(t, h.nc)
	h.extension("late", `"here"`, "env = { TOKEN = \"${file:token}\" }\n")
	h.run(nil)
	f.wait("late", "the file is missing", func(i wire.InventoryInstance) bool { return strings.Contains(i.Reason, "${file:token}") })
	token := filepath.Join(h.dir, "ext", "late", "token")
	h.write(token, "secret\n", 0o600)
	h.answers("late", `"here"`)
	h.control("restart", `{"id":"late"}`) // the end of a run is explained with the secrets of that run
	h.answers("late", `"here"`)
	h.control("reload", "{}")
	h.answers("late", `"here"`)
	before := instanceOf(t, h.control("status", "{}"), "late")
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	if got := h.control("reload", "{}"); !strings.Contains(got, `"replaced":[]`) || instanceOf(t, h.control("status", "{}"), "late") != before {
		t.Errorf("without the file, the instance does not stay: %s", got)
	}
}
