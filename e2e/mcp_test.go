package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mcpClient is an MCP client of an extctl mcp that runs as a program.
type mcpClient struct {
	t   *testing.T
	in  io.WriteCloser
	out chan string // the lines; closed at the end of the output
	p   *process
}

func startMCP(t *testing.T, url string, args ...string) *mcpClient {
	t.Helper()
	return startMCPWith(t, []string{"NATS_URL=" + url}, args...)
}

func startMCPWith(t *testing.T, env []string, args ...string) *mcpClient {
	t.Helper()
	cmd := exec.Command(program(t, "extctl"), append([]string{"mcp", "--wait", "30s"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	m := &mcpClient{t: t, in: in, out: make(chan string, 1000)}
	go func() { // ends with the program
		defer close(m.out)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			m.out <- lines.Text()
		}
	}()
	m.p = &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, m.p, time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the program
		m.p.err = cmd.Wait()
		w.Close()
		close(m.p.done)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-m.p.done
		if t.Failed() {
			t.Logf("stderr of extctl mcp:\n%s", m.p.output())
		}
	})
	return m
}

func (m *mcpClient) send(line string) {
	m.t.Helper()
	if _, err := io.WriteString(m.in, line+"\n"); err != nil {
		m.t.Fatal(err)
	}
}

// next returns the next answer; notifications are skipped.
func (m *mcpClient) next() string {
	m.t.Helper()
	for {
		select {
		case line, ok := <-m.out:
			if !ok {
				m.t.Fatal("extctl mcp has ended")
			}
			if !strings.HasPrefix(line, `{"jsonrpc":"2.0","method":`) {
				return line
			}
		case <-time.After(time.Minute):
			m.t.Fatal("no answer of extctl mcp")
		}
	}
}

// call calls a tool and returns the answer. more are further members of params.
func (m *mcpClient) call(tool, more string) string {
	m.t.Helper()
	m.sendCall("1", tool, more)
	return m.next()
}

func (m *mcpClient) sendCall(id, tool, more string) {
	m.t.Helper()
	m.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `"` + more + `}}`)
}

// waitForTools waits until the list has a tool.
func (m *mcpClient) waitForTools(name string) {
	m.t.Helper()
	eventually(m.t, time.Minute, name+" is in the list", func() bool {
		m.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		return strings.Contains(m.next(), `"name":"`+name+`"`)
	})
}

// boxScript answers calls of echo, exits during calls of die, and does not answer calls of hang.
const boxScript = `
[plugin]
id = "box"
version = "1.0.0"
[capabilities]
tools = ["echo", "die", "hang"]
[transport]
type = "stdio"
command = "sh"
args = ["-c", '''
while read -r line; do
	id=${line#*\"id\":}; id=${id%%[,\}]*}
	case $line in
	*initialize*) r='{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object","properties":{"n":{"type":"integer"}}}},{"name":"die","input_schema":{"type":"object"}},{"name":"hang","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*tools/die*) kill -9 $$ ;;
	*tools/hang*|*notifications/*) continue ;;
	*) r='"echo"' ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$r}"
done''']
`

// TestMCPFaults causes the faults that a model reads about, and compares the results with testdata/mcp_faults.txt.
func TestMCPFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address, natsd := startNATS(t, `authorization { timeout: 60, users = [ {user: all, password: all},
		{user: some, password: some, permissions: {publish: {deny: ["ext.spare.rpc"]}}} ] }`)
	url := strings.Replace(address, "nats://", "nats://all:all@", 1)
	manifest := func(id, command, more string) {
		write(t, filepath.Join(dir, id, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = %q\n%s", id, command, more))
	}
	write(t, filepath.Join(dir, "box", "plugin.toml"), boxScript)
	write(t, filepath.Join(dir, "spare", "plugin.toml"), strings.ReplaceAll(boxScript, `"box"`, `"spare"`))
	manifest("gated", "sh", "[requires]\nenv = [\"NO_SUCH_VARIABLE\"]\n")
	manifest("broken", "false", "")
	config := filepath.Join(t.TempDir(), "extensions.yaml")
	write(t, config, `extensions: {supervision: {max_restarts: 0, failed_retry: 0, hang_timeout: 0}, entries: {box: {max_inflight: 4, max_restarts: 100, base_backoff: 50ms}}}`)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "b1", "--search-path", dir, "--config", config)
	for _, wait := range [][]string{{"box", "ready"}, {"spare", "ready"}, {"gated", "gated"}, {"broken", "failed"}} {
		if out, stderr, code := extctl(t, url, "wait", wait[0], "--for", wait[1]); code != 0 {
			t.Fatalf("%q: exit %d, %s%s", wait, code, out, stderr)
		}
	}
	m := startMCP(t, url)
	m.waitForTools("ext_box_echo")
	m.waitForTools("ext_spare_echo")
	impatient := startMCP(t, url, "--timeout", "2s")
	impatient.waitForTools("ext_box_echo")

	restricted := startMCP(t, strings.Replace(address, "nats://", "nats://some:some@", 1))
	restricted.waitForTools("ext_spare_echo")

	results := map[string]string{}
	results["denied by NATS"] = restricted.call("ext_spare_echo", "")
	results["killed during the call"] = m.call("ext_box_die", "")
	eventually(t, time.Minute, "the extension is back", func() bool { return strings.Contains(m.call("ext_box_echo", ""), `"echo"`) })
	results["wrong arguments"] = m.call("ext_box_echo", `,"arguments":{"n":"x"}`)
	results["large arguments"] = m.call("ext_box_echo", `,"arguments":{"x":"`+strings.Repeat("x", 2<<20)+`"}`)
	results["timeout"] = impatient.call("ext_box_hang", "")
	results["missing variable"] = m.call("gated/x", "")
	results["does not start"] = m.call("broken/x", "")
	m.sendCall(`"h1"`, "ext_box_hang", "")
	m.sendCall(`"h2"`, "ext_box_hang", "")
	eventually(t, time.Minute, "the extension is overloaded", func() bool { // when both calls have arrived; a caller may have half of 4
		answer := m.call("ext_box_echo", "")
		results["overloaded"] = answer
		return strings.Contains(answer, "isError")
	})
	for _, id := range []string{"h1", "h2"} {
		m.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"` + id + `"}}`)
	}
	if out, stderr, code := extctl(t, url, "drain", "spare", "--yes"); code != 0 {
		t.Fatalf("drain: exit %d, %s%s", code, out, stderr)
	}
	if out, stderr, code := extctl(t, url, "wait", "spare", "--for", "draining"); code != 0 {
		t.Fatalf("wait: exit %d, %s%s", code, out, stderr)
	}
	results["drained"] = m.call("ext_spare_echo", "")
	natsd.cmd.Process.Signal(syscall.SIGKILL)
	<-natsd.done
	eventually(t, time.Minute, "the loss of NATS is noticed", func() bool {
		results["no NATS"] = m.call("ext_box_echo", "")
		return strings.Contains(results["no NATS"], "not reachable") // a call in the last moment has a different result
	})
	compareMCPFaults(t, results)

	began := time.Now()
	m.in.Close()
	<-m.p.done
	if m.p.err != nil || time.Since(began) > limitFor(5*time.Second) {
		t.Errorf("extctl mcp ended after %s with %v", time.Since(began), m.p.err)
	}
}

// durations are the parts of the texts that depend on the load of the machine.
var durations = regexp.MustCompile(`about \d+s|after [0-9.]+m?s|[0-9.]+ KB|"retry_after_ms":\d+|"state":"(draining|shutdown)"`)

func compareMCPFaults(t *testing.T, results map[string]string) {
	t.Helper()
	var names []string
	for name := range results {
		names = append(names, name)
	}
	slices.Sort(names)
	var got strings.Builder
	for _, name := range names {
		var answer struct {
			Result struct {
				IsError bool
				Content []struct{ Text string }
				Meta    map[string]json.RawMessage `json:"_meta"`
			}
		}
		if err := json.Unmarshal([]byte(results[name]), &answer); err != nil || !answer.Result.IsError || len(answer.Result.Content) != 1 {
			t.Errorf("%s: no failure: %.500s", name, results[name])
			continue
		}
		text := answer.Result.Content[0].Text + "\n" + string(answer.Result.Meta["extmesh/error"])
		fmt.Fprintf(&got, "%s:\n%s\n\n", name, durations.ReplaceAllString(text, "N"))
	}
	path := filepath.Join("testdata", "mcp_faults.txt")
	if *update {
		write(t, path, got.String())
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s differs; go test -update writes it:\n%s", path, got.String())
	}
}

// TestMCPUpWaits: a server with --up answers the first lists when each extension has started or failed. Until then it answers
// other requests, and asks clients not to cache what it has.
func TestMCPUpWaits(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "box", "plugin.toml"), boxScript)
	held := strings.ReplaceAll(strings.ReplaceAll(boxScript, `"box"`, `"held"`), "while read", "while [ ! -e go ]; do sleep 0.05; done\nwhile read")
	write(t, filepath.Join(dir, "held", "plugin.toml"), held)
	for id, more := range map[string]string{"broken": "", "gated": "[requires]\nenv = [\"NO_SUCH_VARIABLE\"]\n"} {
		write(t, filepath.Join(dir, id, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"false\"\n%s", id, more))
	}
	env := []string{"NATS_URL=", "XDG_DATA_HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home}
	m := startMCPWith(t, env, "--up", dir, "--wait", "5m")
	const modern = `"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}`
	methods := []string{"tools/list", "prompts/list", "resources/list", "skills/list"}
	for _, method := range methods {
		m.send(`{"jsonrpc":"2.0","id":"` + method + `","method":"` + method + `",` + modern + `}`)
	}
	eventually(t, time.Minute, "a call of the extension that has started succeeds", func() bool {
		answer := m.call("ext_box_echo", "")
		if strings.Contains(answer, "/list") {
			t.Fatalf("a list was answered while an extension was starting: %s", answer)
		}
		return strings.Contains(answer, `"text":"echo"`)
	})
	m.send(`{"jsonrpc":"2.0","id":1,"method":"server/discover",` + modern + `}`)
	if answer := m.next(); !strings.HasPrefix(answer, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,`) {
		t.Errorf("while an extension starts, server/discover is answered with %s", answer)
	}
	write(t, filepath.Join(dir, "held", "go"), "")
	answers := ""
	for range methods {
		answers += m.next() + "\n"
	}
	for _, want := range append(methods, "ext_box_echo", "ext_held_echo") {
		if !strings.Contains(answers, `"`+want+`"`) {
			t.Errorf("no %s in the lists\n%s", want, answers)
		}
	}
}

// TestMCPUp starts two servers with --up: the first starts the mesh, the second uses it, and starts it again when the
// first one ends.
func TestMCPUp(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "box", "plugin.toml"), boxScript)
	env := []string{"NATS_URL=", "XDG_DATA_HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home}
	first := startMCPWith(t, env, "--up", dir)
	first.waitForTools("ext_box_echo")
	second := startMCPWith(t, env, "--up", dir)
	second.waitForTools("ext_box_echo")
	if n := strings.Count(second.p.output(), "level=ERROR"); n > 0 {
		t.Errorf("the second server has logged errors:\n%s", second.p.output())
	}
	first.in.Close()
	<-first.p.done
	if first.p.err != nil {
		t.Errorf("the first server: %v", first.p.err)
	}
	eventually(t, 3*time.Minute, "a call through the second server succeeds again", func() bool {
		return strings.Contains(second.call("ext_box_echo", ""), `"text":"echo"`)
	})
}
