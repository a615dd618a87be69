package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fromThePage returns the command of docs/testdata/from_the_page.py, a follower and a service that were written from
// docs/protocol.md alone. Without Python the test is skipped, and fails if CI=true.
func fromThePage(t *testing.T, url, role string) []string {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return []string{"python3", "-B", "../docs/testdata/from_the_page.py", strings.TrimPrefix(url, "nats://"), role}
}

// pageFollower is a running follower of from_the_page.py.
type pageFollower struct {
	t     *testing.T
	stdin io.Writer
	lines *bufio.Scanner
}

// pageCopy is the state of a follower: one line of its output.
type pageCopy struct {
	Dump, Behind, Fresh bool
	Last, Snapshots     int
	Copy                map[string]any
}

func startPageFollower(t *testing.T, url string) *pageFollower {
	t.Helper()
	command := fromThePage(t, url, "follow")
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stderr = t.Output()
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended and killed it
	f := &pageFollower{t: t, stdin: stdin, lines: bufio.NewScanner(stdout)}
	f.lines.Buffer(nil, 16<<20)
	return f
}

func (f *pageFollower) send(command string) {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.stdin, command); err != nil {
		f.t.Fatal(err)
	}
}

// dump returns the present state of the follower.
func (f *pageFollower) dump() (c pageCopy) {
	f.t.Helper()
	f.send("dump")
	for f.lines.Scan() {
		c = pageCopy{}
		if err := json.Unmarshal(f.lines.Bytes(), &c); err != nil {
			f.t.Fatalf("the follower printed %q: %v", f.lines.Text(), err)
		}
		if c.Dump {
			return c
		}
	}
	f.t.Fatal("the follower ended: ", f.lines.Err())
	return c
}

// has reports whether an extension of the copy has tools and an available instance.
func (c pageCopy) has(id string) bool {
	spec, _ := c.Copy["spec."+id].(map[string]any)
	tools, _ := spec["tools"].([]any)
	state, _ := c.Copy["state."+id].(map[string]any)
	return len(tools) > 0 && state["available"] == true
}

// bucket returns the catalog as a KV client of the NATS project reads it, without the keys of the registries.
func bucket(t *testing.T, js jetstream.JetStream) map[string]any {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), "ext_catalog")
	if err != nil {
		return nil // it was deleted
	}
	keys, err := kv.Keys(t.Context())
	if err != nil {
		return nil
	}
	values := map[string]any{}
	for _, key := range keys {
		if key == "lease.registry" || key == "epoch.registry" {
			continue
		}
		var value any
		if entry, err := kv.Get(t.Context(), key); err == nil && json.Unmarshal(entry.Value(), &value) == nil {
			values[key] = value
		}
	}
	return values
}

// TestFollowerFromThePage compares the copy of a follower, which was written from docs/protocol.md alone, with the bucket,
// through everything of which the section "Following the catalog" tells what to do.
func TestFollowerFromThePage(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	nc := connect(t, url)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	f := startPageFollower(t, url)
	registry := start(t, env, program(t, "registry"))
	extensions, states := t.TempDir(), t.TempDir()
	for _, id := range []string{"one", "two"} {
		dir := filepath.Join(extensions, id)
		if err := os.CopyFS(dir, os.DirFS("../examples/extensions/hello")); err != nil {
			t.Fatal(err)
		}
		manifest, err := os.ReadFile(filepath.Join(dir, "plugin.toml"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "plugin.toml"), strings.Replace(string(manifest), `"hello"`, `"`+id+`"`, 1))
	}
	settings := filepath.Join(states, "extensions.yaml")
	write(t, settings, "extensions: {heartbeat_interval: 1s}\n") // so that a killed bridge is lost after 3 s
	startBridge := func() *process {
		return start(t, env, program(t, "stdio-bridge"), "--name", "web-1", "--search-path", extensions, "--state-dir", states, "--config", settings)
	}
	same := func(what string, cond func(c pageCopy) bool) (c pageCopy) {
		t.Helper()
		eventually(t, 2*time.Minute, what, func() bool {
			want := bucket(t, js)
			c = f.dump()
			return want != nil && reflect.DeepEqual(c.Copy, want) && !c.Behind && cond(c)
		})
		return c
	}

	bridge := startBridge()
	c := same("the extensions of the bridge are in the copy", func(c pageCopy) bool { return c.has("one") && c.has("two") })
	if !c.Fresh {
		t.Error("the copy is not fresh, though it has just changed")
	}
	forged := nats.NewMsg("ext.registry.catalog.spec.forged")
	forged.Data = []byte(`{"id":"forged"}`)
	for _, stored := range []string{"", "$KV.ext_catalog.spec.one"} {
		if stored != "" {
			forged.Header = nats.Header{"Nats-Subject": {stored}, "Nats-Sequence": {fmt.Sprint(c.Last + 1)}, "Nats-Time-Stamp": {"2126-01-01T00:00:00Z"}}
		}
		if err := nc.PublishMsg(forged); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Publish("ext.registry.catalog.\x0bspec\xff", []byte("neither a space nor UTF-8")); err != nil {
		t.Fatal(err)
	}
	service := fromThePage(t, url, "serve")
	start(t, nil, service[0], service[1:]...)
	same("the service is in the copy", func(c pageCopy) bool { return c.has("clockpy") })

	if err := os.RemoveAll(filepath.Join(extensions, "two")); err != nil {
		t.Fatal(err)
	}
	if out, text, code := extctl(t, url, "reload", "web-1"); code != 0 {
		t.Fatalf("extctl reload: %s%s", out, text)
	}
	c = same("a removed extension is not in the copy", func(c pageCopy) bool { return c.Copy["state.two"] == nil && c.Copy["spec.two"] == nil })

	f.send("skip")
	bridge.stop(t, 20*time.Second)
	c = same("the bridge has stopped, and the gap is filled by a snapshot", func(n pageCopy) bool {
		return n.Snapshots > c.Snapshots && !n.has("one")
	})
	f.send("reconnect")
	bridge = startBridge()
	c = same("the bridge has started, and the follower has connected again", func(n pageCopy) bool {
		return n.Snapshots > c.Snapshots && n.has("one")
	})
	bridge.cmd.Process.Kill()
	same("the bridge was killed", func(c pageCopy) bool { return !c.has("one") && c.has("clockpy") })
	startBridge()
	c = same("the bridge has started again", func(c pageCopy) bool { return c.has("one") })

	if err := js.DeleteStream(t.Context(), "KV_ext_catalog"); err != nil {
		t.Fatal(err)
	}
	same("the bucket was deleted and created again", func(n pageCopy) bool {
		return n.Snapshots > c.Snapshots && n.has("one") && n.has("clockpy")
	})

	registry.cmd.Process.Kill() // it would write what is purged
	<-registry.done
	stream, err := js.Stream(t.Context(), "KV_ext_catalog")
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.ext_catalog.*.one"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.send("idle") // it takes its next snapshot now and not in half a minute
	same("a purge, of which there are no events", func(c pageCopy) bool { return c.Copy["spec.one"] == nil && c.has("clockpy") })
}

// TestServiceFromThePage calls a service that was written from docs/protocol.md alone, and stops it during calls.
func TestServiceFromThePage(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	start(t, []string{"NATS_URL=" + url}, program(t, "registry"))
	command := fromThePage(t, url, "serve")
	stopUnderLoad(t, url, 3, "ext_clockpy_echo", []string{`{"wait_ms":0}`, `{"wait_ms":300}`}, func() *process {
		return start(t, nil, command[0], command[1:]...)
	})
	for _, tt := range []struct {
		args   []string
		answer string
		code   int
	}{
		{args: []string{"clockpy/now"}, answer: `{"now": "20`},
		{args: []string{"clockpy/echo", "wait_ms=1", "text=größe"}, answer: `"gr\u00f6\u00dfe"`},
		{args: []string{"clockpy/echo", "wait_ms=soon"}, code: 2},
	} {
		out, text, code := extctl(t, url, append([]string{"call"}, tt.args...)...)
		if code != tt.code || !strings.Contains(out, tt.answer) {
			t.Errorf("extctl call %v: exit %d, %s%s; want exit %d and %s", tt.args, code, out, text, tt.code, tt.answer)
		}
	}
}

// TestServiceFromThePageAnswersInboxesOnly sends requests whose answers would be heartbeats.
func TestServiceFromThePageAnswersInboxesOnly(t *testing.T) {
	t.Parallel()
	command := fromThePage(t, "$2", "serve") // $1 is --nats-url
	command[3] = `"${2#nats://}"`
	answersInboxesOnly(t, "clockpy", []string{"sh", "-c", "exec " + strings.Join(command, " "), "sh"})
}
