package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

// upRun is an extctl up that runs in this process.
type upRun struct {
	cancel context.CancelFunc
	done   chan int
	out    logBuffer
	err    logBuffer
}

type logBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func startUp(t *testing.T, args ...string) *upRun {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	u := &upRun{cancel: cancel, done: make(chan int, 1)}
	go func() { // ends with cancel
		u.done <- run(ctx, append([]string{"up"}, args...), nil, &u.out, &u.err, func(string) string { return "" })
	}()
	t.Cleanup(func() {
		cancel()
		<-u.done
		u.done <- 0
	})
	return u
}

// await waits until stdout or stderr contains text.
func (u *upRun) await(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		if strings.Contains(u.out.String(), text) || strings.Contains(u.err.String(), text) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not printed: %s\n%s%s", text, u.out.String(), u.err.String())
		}
	}
}

// extensionDir creates a directory with the manifests id/plugin.toml.
func extensionDir(t *testing.T, manifests map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for id, text := range manifests {
		if err := os.MkdirAll(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, id, "plugin.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shellExtension is a shell script that answers initialize and every call.
const shellExtension = `
[plugin]
id = "echo"
version = "1.2.3"
[capabilities]
tools = ["say"]
[transport]
type = "stdio"
command = "sh"
args = ["-c", '''
while read -r line; do
	id=${line#*\"id\":}; id=${id%%[,\}]*}
	case $line in
	*initialize*) r='{"server_version":"1","tools":[{"name":"say","description":"Says it.","input_schema":{"type":"object","properties":{"what":{"type":"string"}},"required":["what"]}}],"hooks":[]}' ;;
	*) r='"said"' ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$r}"
done''']
`

func TestUp(t *testing.T) {
	t.Parallel()
	dir := extensionDir(t, map[string]string{
		"echo":   shellExtension,
		"broken": "[plugin]\nid = \"broken\"\n",
		"crashy": "[plugin]\nid = \"crashy\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"-c\", \"exit 3\"]\n",
		"hangs":  "[plugin]\nid = \"hangs\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sleep\"\nargs = [\"1000\"]\n",
		"gated":  "[plugin]\nid = \"gated\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"x\"\n[requires]\nbins = [\"no-such-program-anywhere\"]\n",
	})
	data := t.TempDir()
	settings := filepath.Join(data, "extensions.yaml")
	// crashy and hangs must still be in these states when the catalog exists, however late that is.
	text := "extensions: {supervision: {shutdown_grace: 100ms, handshake_timeout: 5m, max_restarts: 1000}}"
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	u := startUp(t, dir, "--listen", "0", "--data", data, "--name", "b1", "--log-level", "error", "--config", settings)
	u.await(t, "ready     echo")
	began := time.Now()
	u.await(t, "Ctrl-C stops everything.")
	if took := time.Since(began); took > settleTimeout-3*time.Second { // extensions that crash or hang do not delay the summary
		t.Errorf("the first call was shown %s after there was something to call", took)
	}
	u.await(t, "exit status 3") // of crashy, which may be reported after the summary
	out := u.out.String()
	for _, want := range []string{
		"NATS listens on nats://127.0.0.1:",
		"ready     echo 1.2.3, 1 tool\n",
		"gated     gated 1.0.0: ",
		"starting  hangs 1.0.0",
		"no-such-program-anywhere",
		"broken/plugin.toml: ",
		"\nFor the nats command and other programs: export NATS_URL=$(extctl url --data " + data + ")\n",
		"    export NATS_URL=$(extctl url --data " + data + ")\n    extctl call ext_echo_say what=hello\n", // --data is not the default
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(u.err.String(), "broken") {
		t.Errorf("printed twice:\n%s", u.err.String())
	}
	url := upURL(t, data)
	if code, stdout, stderr := extctl(t.Context(), url, "call", "ext_echo_say", "what=hello"); code != 0 || stdout != "\"said\"\n" {
		t.Errorf("call: exit %d, %s%s", code, stdout, stderr)
	}
	// A second mesh cannot use the same data directory.
	code, _, stderr := extctl(t.Context(), url, "up", dir, "--listen", "0", "--data", data)
	if code != exitOther || !strings.Contains(stderr, between(out, "NATS listens on ", ",")) || strings.Contains(stderr, "@") || !strings.Contains(stderr, "extctl up is already running here (pid ") ||
		!strings.Contains(stderr, "hint: to add extensions that it does not run yet: NATS_URL=$(extctl url --data "+data+") extctl up --join "+dir+"; ") {
		t.Errorf("second up: exit %d, %s", code, stderr)
	}
	// A restart of a child is printed.
	if code, stdout, stderr := extctl(t.Context(), url, "restart", "echo"); code != 0 || stdout != "b1: restarting 1 instance\n" {
		t.Errorf("restart: exit %d, %s%s", code, stdout, stderr)
	}
	u.await(t, "1/1, 1 restart")
	start := time.Now()
	u.cancel()
	if code := <-u.done; code != 0 {
		t.Errorf("exit %d\n%s", code, u.err.String())
	}
	u.done <- 0
	if stderr := u.err.String(); !strings.Contains(stderr, "\nstopping the extensions, ") || !strings.HasSuffix(stderr, "\nstopped\n") || strings.Contains(stderr, "NATS connection lost") || strings.Contains(stderr, "{") {
		t.Errorf("it stops with %s", stderr) // the log is text, also in a pipe
	}
	if took := time.Since(start); took > 20*time.Second { // less than the limit for calls in flight
		t.Errorf("stopping took %v", took)
	}
	// The data is kept, and a new mesh can use it.
	u = startUp(t, dir, "--listen", "0", "--data", data, "--name", "b1", "--json", "--log-level", "error", "--config", settings)
	u.await(t, `"schema_version":1`)
	var first struct {
		Server     string
		Extensions []struct {
			ID        string
			Instances []struct{ State string }
		}
		Problems []struct{ Path, Kind string }
	}
	if err := json.Unmarshal([]byte(u.out.String()), &first); err != nil || len(first.Extensions) != 4 ||
		len(first.Problems) != 3 || !strings.HasPrefix(first.Server, "nats://") {
		t.Errorf("%v: %s", err, u.out.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(u.err.String()), "\n") {
		if line != "" && !json.Valid([]byte(line)) {
			t.Errorf("with --json, stderr has %q", line)
		}
	}
	for _, i := range first.Extensions[0].Instances[:len(first.Extensions[0].Instances)-1] {
		if i.State != "shutdown" {
			t.Errorf("an instance of the earlier run is %s", i.State)
		}
	}
}

// upURL is the output of extctl url for the mesh with the data directory dir.
func upURL(t *testing.T, dir string) string {
	t.Helper()
	code, stdout, stderr := extctl(t.Context(), "nats://127.0.0.1:1", "url", "--data", dir)
	if code != 0 || stderr != "" {
		t.Fatalf("url: exit %d, %s%s", code, stdout, stderr)
	}
	return strings.TrimSpace(stdout)
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// TestUpRequiresItsPassword: a user of the machine without access to the data directory can neither call nor control.
func TestUpRequiresItsPassword(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	u := startUp(t, extensionDir(t, map[string]string{"echo": shellExtension}), "--listen", "0", "--data", data, "--name", "b1")
	u.await(t, "Ctrl-C stops everything.")
	url := upURL(t, data)
	plain := between(u.out.String(), "NATS listens on ", ",")
	password := between(url, "nats://extmesh:", "@")
	if len(password) < 20 || url != strings.Replace(plain, "://", "://extmesh:"+password+"@", 1) || strings.Contains(u.out.String()+u.err.String(), password) {
		t.Errorf("%s listens on %s", url, plain)
	}
	for _, at := range []string{plain, strings.Replace(url, password, password[1:], 1), strings.Replace(url, "extmesh:", "other:", 1), strings.Replace(url, "extmesh:", "", 1)} {
		for _, args := range [][]string{{"call", "echo/say", "what=hello"}, {"restart", "echo"}, {"list"}} {
			if code, stdout, stderr := extctl(t.Context(), at, args...); code != exitDenied {
				t.Errorf("extctl %v --server %s: exit %d, %s%s", args, at, code, stdout, stderr)
			}
		}
	}
	if code, _, stderr := extctl(t.Context(), url, "restart", "echo"); code != 0 {
		t.Errorf("with the password: exit %d, %s", code, stderr)
	}
	note := storelock.NotePath(daemon.StoreDir(data))
	if info, err := os.Stat(note); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(note); err != nil || !strings.Contains(string(text), password) {
		t.Errorf("%s, %v", text, err)
	}
	if code, _, stderr := extctl(t.Context(), "nats://h", "url", "--data", t.TempDir()); code != exitNoNATS || !strings.Contains(stderr, "no extctl up is running with the data directory ") {
		t.Errorf("url without an up: exit %d, %s", code, stderr)
	}
	if code, stdout, _ := extctl(t.Context(), "nats://u:p@h:1,tls://h2", "url", "--json"); code != 0 || stdout != `{"schema_version":1,"url":"nats://u:p@h:1,tls://h2"}`+"\n" {
		t.Errorf("url of another server: exit %d, %s", code, stdout)
	}
}

func TestUpFallsBackToFreePort(t *testing.T) {
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	_, port, _ := strings.Cut(strings.TrimPrefix(b.url, "nats://"), ":")
	dir := extensionDir(t, nil)
	code, _, stderr := extctl(t.Context(), b.url, "up", dir, "--listen", port, "--data", t.TempDir())
	if code != exitOther || !strings.Contains(stderr, "cannot listen on 127.0.0.1:"+port) {
		t.Errorf("with --listen: exit %d, %s", code, stderr)
	}
	a := &app{stderr: &logBuffer{}}
	srv, err := startNATS(a, upOptions{listen: port, data: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	if stderr := a.stderr.(*logBuffer).String(); !strings.Contains(stderr, port+" is in use") {
		t.Errorf("stderr: %q", stderr)
	}
}

func TestUpUsage(t *testing.T) {
	dir := extensionDir(t, map[string]string{"x": ""})
	yaml := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(yaml, []byte("extensions:\n  max_depth: many\n  gating: perhaps\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"up " + dir + "/missing":                 "missing",
		"up " + dir + "/x/plugin.toml":           "not a directory",
		"up --listen host:port " + dir:           "want a port or host:port",
		"up --listen 0.0.0.0:0 " + dir:           "listens on this machine only",
		"up --listen example.com:1 " + dir:       "listens on this machine only",
		"up --listen :99999 " + dir:              "want a port or host:port",
		"up --listen 99999 " + dir:               "want a port or host:port",
		"up --name No! " + dir:                   "--name",
		"up --log-level loud " + dir:             "debug, info, warn or error",
		"up --config " + yaml + " " + dir:        "gating",
		"up --join " + dir:                       "--join excludes --listen and --data",
		"up " + dir + "/x/missing":               "there is no directory " + dir + "/x/missing",
		"up --config " + dir + "/no.yaml " + dir: "no.yaml",
	} {
		code, stdout, stderr := extctl(t.Context(), "nats://127.0.0.1:1", append(strings.Fields(args), "--data", t.TempDir())...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s%s; want exit 2 with %q", args, code, stdout, stderr, want)
		}
	}
}

// TestUpForgetsEarlierBridges: extensions of a run with another --name do not claim the names of tools.
func TestUpForgetsEarlierBridges(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	manifest := func(id, tool string) string {
		return strings.NewReplacer(`"echo"`, `"`+id+`"`, `"say"`, `"`+tool+`"`).Replace(shellExtension)
	}
	for _, run := range []struct{ name, id, tool string }{{"b1", "a_b", "c"}, {"b2", "a", "b_c"}} {
		u := startUp(t, extensionDir(t, map[string]string{run.id: manifest(run.id, run.tool)}), "--listen", "0", "--data", data, "--name", run.name, "--log-level", "error")
		u.await(t, "extctl call ext_a_b_c what=hello\n") // without a suffix
		code, stdout, stderr := extctl(t.Context(), upURL(t, data), "list", "--json")
		var list struct{ Extensions []struct{ ID string } }
		if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil || len(list.Extensions) != 1 || list.Extensions[0].ID != run.id {
			t.Errorf("%s: %v, %s%s", run.name, err, stdout, stderr)
		}
		code, stdout, _ = extctl(t.Context(), upURL(t, data), "hosts", "--json")
		if strings.Count(stdout, `"bridge":`) != 1 || !strings.Contains(stdout, `"bridge":"`+run.name+`"`) {
			t.Errorf("exit %d, hosts: %s", code, stdout)
		}
		u.cancel()
		<-u.done
		u.done <- 0
	}
}

// TestUpJoin: extensions join a mesh that runs, and restart when their files change. That mesh has none of its own and says
// what to do.
func TestUpJoin(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	settings := filepath.Join(data, "extensions.yaml")
	if err := os.WriteFile(settings, []byte("extensions: {supervision: {shutdown_grace: 100ms}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(data, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	first := startUp(t, empty, "--listen", "0", "--data", data, "--name", "b1", "--config", settings)
	first.await(t, "There are no extensions in "+empty+" yet. Make one:\n\n    extctl new hello --lang python --dir "+empty+"\n\nIt starts as soon as it is there.\n")
	url := upURL(t, data)

	dir := extensionDir(t, map[string]string{"echo": shellExtension})
	joined := startUp(t, "--join", "--watch", "--server", url, "--config", settings, dir)
	joined.await(t, "Ctrl-C stops these extensions; the mesh keeps running.")
	name := bridge.DefaultName() + "-" + filepath.Base(dir)
	if out := joined.out.String(); !strings.Contains(out, "Joined the mesh on nats://") || !strings.Contains(out, " as the bridge "+name+"\n") ||
		!strings.Contains(out, "extctl call ext_echo_say what=hello --server ") || strings.Contains(out, between(url, "extmesh:", "@")) {
		t.Errorf("%s%s", out, joined.err.String())
	}
	if err := os.WriteFile(filepath.Join(dir, "echo", "main.py"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	joined.await(t, "  restarting echo: main.py changed\n")
	joined.await(t, "1/1, 1 restart")

	// The mesh that runs applies a new manifest by itself, with an extensions.yaml, too.
	other := strings.Replace(shellExtension, `"echo"`, `"other"`, 1)
	if err := os.CopyFS(filepath.Join(empty, "other"), fstest.MapFS{"plugin.toml": {Data: []byte(other), Mode: 0o600}}); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := extctl(t.Context(), url, "wait", "other", "--timeout", "1m"); code != 0 {
		t.Errorf("exit %d, %s", code, stderr)
	}

	// The mesh keeps running without the bridge that joined it.
	joined.cancel()
	if code := <-joined.done; code != 0 || !strings.HasSuffix(joined.err.String(), "\nstopped\n") {
		t.Errorf("exit %d\n%s", code, joined.err.String())
	}
	joined.done <- 0
	if code, stdout, stderr := extctl(t.Context(), url, "call", "ext_other_say", "what=hello"); code != 0 || stdout != "\"said\"\n" {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := extctl(t.Context(), url, "up", "--join", "nats://h:1", dir); code != exitUsage || !strings.Contains(stderr, "hint: the address of the mesh is a flag: extctl up --join --server nats://h:1 DIR\n") {
		t.Errorf("an address as a directory: exit %d, %s", code, stderr)
	}
	if code, _, stderr := extctl(t.Context(), "nats://127.0.0.1:1", "up", "--join", dir); code != exitNoNATS || !strings.Contains(stderr, "cannot connect to NATS at nats://127.0.0.1:1 (from --server)") {
		t.Errorf("without a mesh: exit %d, %s", code, stderr)
	}
}

// TestUpSettings: extctl up applies changed manifests at once unless the file says otherwise; --watch overrides the file.
func TestUpSettings(t *testing.T) {
	for _, test := range []struct {
		file   string
		watch  bool
		reload bool
	}{{"{}", false, true}, {"{watch: {debounce_ms: 100}}", false, true}, {"{watch: {reload: false}}", false, false}, {"{watch: {enabled: false}}", true, true}} {
		file := filepath.Join(t.TempDir(), "extensions.yaml")
		if err := os.WriteFile(file, []byte("extensions: "+test.file), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := upSettings(upOptions{config: file, watch: test.watch}, slog.New(slog.DiscardHandler))
		if err != nil || c.Watch.Reload != test.reload || test.watch && !c.Watch.Enabled {
			t.Errorf("%s: %v, %+v", test.file, err, c.Watch)
		}
	}
}
