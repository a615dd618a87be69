package extensions_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/manifest"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

func TestMain(m *testing.M) { leaks.Main(m) }

// examples are the examples that run offline. "everything" needs npm's registry, and runs with the other real MCP servers
// in the interop suite.
var examples = []string{"hello", "clock", "textkit"}

// TestManifests: the manifests have no errors and no warnings.
func TestManifests(t *testing.T) {
	for _, dir := range append(examples, "everything") {
		parse(t, dir)
	}
}

func parse(t *testing.T, dir string) *manifest.Manifest {
	t.Helper()
	path := filepath.Join(dir, manifest.FileName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, diagnostics := manifest.Parse(path, data, manifest.Options{AgentVersion: "0.1.0"})
	for _, d := range diagnostics {
		t.Error(d)
	}
	if m == nil || m.Plugin.ID != dir {
		t.Fatalf("%s is not the manifest of %s", path, dir)
	}
	return m
}

// TestConversations sends the requests of testdata/<example>.txt to each example and compares the responses byte for
// byte. Lines are sent one at a time and every request waits for its response, so the order is fixed.
func TestConversations(t *testing.T) {
	for _, dir := range examples {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", dir+".txt")
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			x := start(t, dir)
			var got strings.Builder
			for line := range strings.Lines(string(golden)) {
				if strings.HasPrefix(line, "<") {
					continue
				}
				message, send := strings.CutPrefix(strings.TrimSuffix(line, "\n"), ">")
				message = strings.TrimPrefix(message, " ")
				got.WriteString(line)
				if send {
					x.send(t, message)
				}
				if send && answered(dir, message) {
					fmt.Fprintf(&got, "< %s\n", x.read(t))
				}
			}
			if rest := x.end(t); rest != "" {
				t.Errorf("output after the last response: %q", rest)
			}
			if *update {
				if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != string(golden) {
				t.Errorf("conversation:\n%s\nwant\n%s", got.String(), golden)
			}
		})
	}
}

// answered reports whether a line gets a response: requests do, and hello also reports a line that is not JSON.
func answered(dir, line string) bool {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if json.Unmarshal([]byte(line), &m) != nil {
		return dir == "hello" && line != ""
	}
	return m.ID != nil
}

func TestFixedLineIsJSON(t *testing.T) {
	x := start(t, "hello")
	x.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/fixed"}`)
	line := x.read(t)
	for _, want := range []string{`9007199254740993`, `1e400`, `1.0`, `<&>`, `\u00e9\/\"\\\t\ud83d\ude00`, `é😀`} {
		if !strings.Contains(line, want) {
			t.Errorf("%s is not in %s", want, line)
		}
	}
	if !json.Valid([]byte(line)) {
		t.Errorf("not JSON: %s", line)
	}
	x.end(t)
}

func TestClockSideBySide(t *testing.T) {
	x := start(t, "clock")
	x.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/sleep","params":{"ms":3600000}}`)
	x.send(t, `{"jsonrpc":"2.0","id":2,"method":"tools/now","params":{"tz":"Asia/Kathmandu"}}`)

	var now struct {
		ID     int
		Result struct {
			Time   time.Time
			TZ     string
			UnixMS int64 `json:"unix_ms"`
		}
	}
	line := x.read(t)
	if err := json.Unmarshal([]byte(line), &now); err != nil {
		t.Fatal(err)
	}
	if now.ID != 2 || now.Result.TZ != "Asia/Kathmandu" || !strings.Contains(line, "+05:45") {
		t.Errorf("response of now: %s", line)
	}
	if d := time.Since(now.Result.Time); d < -time.Minute || d > time.Minute {
		t.Errorf("the returned time is off by %v", d)
	}

	x.send(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if got, want := x.read(t), `{"jsonrpc":"2.0","id":1,"error":{"code":-32007,"message":"cancelled"}}`; got != want {
		t.Errorf("response of the cancelled sleep: %s, want %s", got, want)
	}

	x.send(t, `{"jsonrpc":"2.0","id":3,"method":"tools/sleep","params":{"ms":3600000}}`)
	x.stdin.Close() // the end of stdin also ends the sleep
	if got := x.read(t); !strings.Contains(got, `"id":3`) || !strings.Contains(got, "cancelled") {
		t.Errorf("response of the sleep at the end of stdin: %s", got)
	}
	x.end(t)
}

// TestTextkitConcurrentCalls sends 200 calls; each response must be complete and on its own line, in any order.
func TestTextkitConcurrentCalls(t *testing.T) {
	x := start(t, "textkit")
	const calls = 200
	go func() { // ends when everything is sent, before the loop below ends
		for i := range calls {
			fmt.Fprintf(x.stdin, `{"jsonrpc":"2.0","id":%d,"method":"tools/reverse","params":{"text":"%d%s"}}`+"\n",
				i, i, strings.Repeat("x", 10_000))
		}
	}()
	seen := map[int]bool{}
	for range calls {
		var m struct {
			ID     int
			Result struct{ Text string }
		}
		line := x.read(t)
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %.80q", err, line)
		}
		if seen[m.ID] || len(m.Result.Text) != 10_000+len(fmt.Sprint(m.ID)) {
			t.Fatalf("answer %d: again, or of %d bytes", m.ID, len(m.Result.Text))
		}
		seen[m.ID] = true
	}
	x.end(t)
}

// An example is one running extension.
type example struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// start runs an example as its manifest describes, with a limit of two minutes because clock compiles first. A missing
// requirement skips the test, and fails it if CI=true: a green run there means that all examples were run.
func start(t *testing.T, dir string) *example {
	t.Helper()
	m := parse(t, dir)
	for _, bin := range m.Requires.Bins {
		if _, err := exec.LookPath(bin); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%v, and CI must run every example", err)
			}
			t.Skip(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	x := &example{cmd: exec.CommandContext(ctx, m.Transport.Command, m.Transport.Args...)}
	x.cmd.Dir = dir
	x.cmd.Stderr = &x.stderr
	x.cmd.WaitDelay = time.Minute
	stdin, err := x.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := x.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	x.stdin, x.stdout = stdin, bufio.NewReader(stdout)
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // only after a failure; otherwise end has stopped it
		stdin.Close()
		cancel()
		_ = x.cmd.Wait()
	})
	return x
}

func (x *example) send(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(x.stdin, line+"\n"); err != nil {
		t.Fatalf("sending %s: %v", line, err)
	}
}

func (x *example) read(t *testing.T) string {
	t.Helper()
	line, err := x.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("after %q: %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// end closes stdin, waits for the extension to exit with status 0, and returns its remaining output.
func (x *example) end(t *testing.T) string {
	t.Helper()
	x.stdin.Close()
	rest, err := io.ReadAll(x.stdout)
	if err != nil {
		t.Error(err)
	}
	if err := x.cmd.Wait(); err != nil {
		t.Errorf("exit: %v; stderr: %s", err, x.stderr.String())
	}
	return string(rest)
}
