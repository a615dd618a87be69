package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// tbxark is the proxy with which TestPerformance compares.
const tbxark = "github.com/TBXark/mcp-proxy"

const tbxarkVersion = "v0.43.2"

// span is the length of each measurement in each round.
const (
	span   = time.Second
	rounds = 5
	flight = 64
)

// target is a server under test: a process, and how one client calls the tool of the same child through it.
type target struct {
	name string
	pid  int
	// open returns a function, to be called once, that makes calls from n callers until ctx ends, and returns the durations of
	// the calls.
	open func(t *testing.T, n int) func(ctx context.Context) []time.Duration

	rate, cpu []float64 // calls per second, and microseconds of processor time a call; one for each round
	alone     []float64 // median microseconds of a call, one at a time
}

// TestPerformance compares extctl mcp with TBXark/mcp-proxy: one client with 64 calls in flight, and one call at a time, to the
// same child, in interleaved rounds. It prints the table of docs/performance.md. It runs with EXTMESH_SLOW=nightly only.
func TestPerformance(t *testing.T) {
	if os.Getenv("EXTMESH_SLOW") != "nightly" {
		t.Skip("it measures for a minute; set EXTMESH_SLOW=nightly")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rawExtension(t, dir, "small/fast", 1)
	rawExtension(t, dir, "small/hundred", 100)
	rawExtension(t, dir, "large/many", 10_000)
	write(t, filepath.Join(dir, "small/child/plugin.toml"), childManifest("child", filepath.Join(filepath.Dir(extctl), "child")))
	url, stop, err := startMesh(filepath.Join(dir, "data"), filepath.Join(dir, "small"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	load := func() string { text, _ := os.ReadFile("/proc/loadavg"); return strings.TrimSpace(string(text)) }
	t.Logf("load at the start: %s", load())

	pipe, web := newPipe(t, url), startServer(t, mcpCommand(url, "--http", "127.0.0.1:0", "--tools", "all"))
	proxy := startTBXark(t, dir, self)
	const modern = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	modernHeader := map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "ext_fast_t00000"}
	targets := []*target{
		{name: "extctl mcp, stdio", pid: pipe.pid, open: pipe.open},
		{name: "extctl mcp, HTTP (2026-07-28)", pid: web.pid, open: posts(web.url, "ext_fast_t00000", modern, modernHeader)},
		{name: "extctl mcp, HTTP (2025-06-18, a session)", pid: web.pid, open: posts(web.url, "ext_fast_t00000", "", session(t, web.url))},
		{name: "TBXark/mcp-proxy, HTTP (2025-06-18)", pid: proxy.pid, open: posts(proxy.url, "t00000", "", map[string]string{"MCP-Protocol-Version": "2025-06-18"})},
	}
	var clients []float64
	for round := range rounds + 1 {
		for _, p := range targets {
			p.measure(t, round > 0)
		}
		clients = append(clients, clientAlone(t, url))
	}
	client := median(clients[1:])
	peer := targets[3]
	fmt.Printf("\n| one client | calls/s, %d in flight | ÷ TBXark | µs of processor time a call | µs, one at a time | over mesh.Client |\n|---|---|---|---|---|---|\n", flight)
	for _, p := range targets {
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.0f | %+.0f |\n", p.name, median(p.rate), ratio(p.rate, peer.rate), median(p.cpu), median(p.alone), median(p.alone)-client)
	}
	fmt.Printf("\nmesh.Client alone: %.0f µs\n", client)
	fmt.Printf("idle memory: %s, HTTP after the calls: %s\n", newPipe(t, url).resident(t), resident(t, web.pid))
	fmt.Printf("tools/list of 100 tools: %s\n", listTime(t, url, "hundred", 100))
	fmt.Printf("a change of tools until the notification: %s\n", changes(t, url))
	large, stopLarge, err := startMesh(filepath.Join(dir, "data2"), filepath.Join(dir, "large"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopLarge)
	fmt.Printf("tools/list of 10,000 tools, all pages: %s\n", listTime(t, large, "many", 10_000))
	t.Logf("load at the end: %s", load())
}

func childManifest(id string, command ...string) string {
	args, _ := json.Marshal(append([]string{}, command[1:]...))
	return fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"*\"]\n[transport]\ntype = \"stdio\"\ndialect = \"mcp\"\ncommand = %q\nargs = %s\n", id, command[0], args)
}

// rawExtension writes an extension with n tools, which this program serves.
func rawExtension(t *testing.T, dir, name string, n int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tools := make([]string, n)
	for i := range tools {
		tools[i] = fmt.Sprintf(`{"name":"t%05d","description":"Tool number %d, with a description of a usual length for such a tool.","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}}}}`, i, i)
	}
	file := filepath.Join(dir, filepath.Base(name)+".json")
	write(t, file, "["+strings.Join(tools, ",")+"]")
	write(t, filepath.Join(dir, name, "plugin.toml"), childManifest(filepath.Base(name), self, rawChildArg, file))
}

// startTBXark builds the proxy in a module of its own, and runs it with the child of the extension fast.
func startTBXark(t *testing.T, dir, self string) httpProcess {
	t.Helper()
	module, program := filepath.Join(dir, "tbxark"), filepath.Join(dir, "tbxark", "mcp-proxy")
	write(t, filepath.Join(module, "go.mod"), fmt.Sprintf("module compare\n\ngo 1.26\n\nrequire %s %s\n", tbxark, tbxarkVersion))
	build := exec.Command("go", "build", "-mod=mod", "-o", program, tbxark)
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", tbxark, err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	write(t, filepath.Join(module, "config.json"), fmt.Sprintf(`{"mcpProxy":{"baseURL":"http://%s","addr":%q,"name":"p","version":"1","type":"streamable-http"},
		"mcpServers":{"fast":{"command":%q,"args":[%q,%q]}}}`, at, at, self, rawChildArg, filepath.Join(dir, "fast.json")))
	cmd := exec.Command(program, "-config", filepath.Join(module, "config.json"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	p := httpProcess{cmd.Process.Pid, "http://" + at + "/fast/"}
	eventually(t, "the proxy answers", func() bool {
		res, err := http.Post(p.url, "application/json", strings.NewReader(callBody("t00000", "")))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && bytes.Contains(text, []byte(`"result"`))
	})
	return p
}

type httpProcess struct {
	pid int
	url string
}

// startServer starts an MCP server over HTTP that prints its URL.
func startServer(t *testing.T, cmd *exec.Cmd) httpProcess {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return httpProcess{cmd.Process.Pid, strings.TrimSpace(line)}
}

func callBody(tool, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{"text":"hello","n":1}%s}}`, tool, meta)
}

// session begins a session and returns the headers of its requests.
func session(t *testing.T, url string) map[string]string {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	r, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return map[string]string{"Mcp-Session-Id": res.Header.Get("Mcp-Session-Id"), "MCP-Protocol-Version": "2025-06-18"}
}

// posts calls a tool over HTTP, with one connection for each caller. Each caller sends the same bytes again and again, with an id
// of its own, so that the client costs little.
func posts(url, tool, meta string, header map[string]string) func(*testing.T, int) func(context.Context) []time.Duration {
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	body := callBody(tool, meta)
	head := fmt.Sprintf("POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n", path, host, len(body)+3)
	for k, v := range header {
		head += k + ": " + v + "\r\n"
	}
	return func(t *testing.T, n int) func(context.Context) []time.Duration {
		conns := make([]net.Conn, n)
		for i := range conns {
			c, err := net.Dial("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			conns[i] = c
		}
		return func(ctx context.Context) []time.Duration {
			var all collected
			var callers sync.WaitGroup
			for i, c := range conns {
				request := []byte(head + "\r\n" + strings.Replace(body, `"id":1`, fmt.Sprintf(`"id":%d`, 1000+i), 1))
				callers.Go(func() { // ends with ctx
					all.add(postAll(ctx, t, c, request))
				})
			}
			callers.Wait()
			for _, c := range conns {
				c.Close()
			}
			return all.took
		}
	}
}

func postAll(ctx context.Context, t *testing.T, c net.Conn, request []byte) (took []time.Duration) {
	in := bufio.NewReader(c)
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := c.Write(request); err != nil {
			t.Error(err)
			return
		}
		if body, err := readResponse(in); err != nil || !bytes.Contains(body, []byte(`\"hello\"`)) {
			t.Errorf("the answer is %s, %v", body, err)
			return
		}
		took = append(took, time.Since(began))
	}
	return took
}

// readResponse reads the body of a response that has a Content-Length, which is valid until the next read. http.ReadResponse
// would cost more than a tenth of a call, and the servers would get that much less of the two processors.
func readResponse(in *bufio.Reader) (body []byte, err error) {
	length := -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			break
		}
		if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(n)); err != nil {
				return nil, err
			}
		}
	}
	if length < 0 {
		return nil, errors.New("the response has no Content-Length")
	}
	if body, err = in.Peek(length); err != nil {
		return nil, err
	}
	_, err = in.Discard(length)
	return body, err
}

// pipeServer is extctl mcp on standard input and output.
type pipeServer struct {
	*conversation
	pid int
}

func newPipe(t *testing.T, url string, args ...string) *pipeServer {
	t.Helper()
	cmd := mcpCommand(url, append([]string{"--tools", "all"}, args...)...)
	c := talk(t, cmd)
	c.ask("tools/list", "{}")
	return &pipeServer{c, cmd.Process.Pid}
}

func (p *pipeServer) resident(t *testing.T) string { return resident(t, p.pid) }

// open keeps n calls in flight on the pipe: each answer is followed by the next call.
func (p *pipeServer) open(t *testing.T, n int) func(context.Context) []time.Duration {
	return func(ctx context.Context) (took []time.Duration) {
		sent := map[int]time.Time{}
		next := func() {
			p.last++
			sent[p.last] = time.Now()
			p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"ext_fast_t00000","arguments":{"text":"hello","n":1}}}`, p.last))
		}
		for range n {
			next()
		}
		for len(sent) > 0 {
			line := p.next()
			_, rest, _ := strings.Cut(line, `"id":`)
			digits, _, _ := strings.Cut(rest, ",")
			id, err := strconv.Atoi(digits)
			if err != nil || !strings.Contains(line, `\"hello\"`) {
				t.Fatalf("the answer is %s", line)
			}
			took = append(took, time.Since(sent[id]))
			delete(sent, id)
			if ctx.Err() == nil {
				next()
			}
		}
		return took
	}
}

// measure measures one target in one round; the first round only warms it up.
func (p *target) measure(t *testing.T, counts bool) {
	t.Helper()
	run := p.open(t, flight)
	for _, n := range []int{flight, 1} {
		if n == 1 {
			run = p.open(t, 1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), span)
		before, began := processorTime(t, p.pid), time.Now()
		took := run(ctx)
		elapsed, used := time.Since(began), processorTime(t, p.pid)-before
		cancel()
		switch {
		case !counts || len(took) == 0:
		case n == 1:
			slices.Sort(took)
			p.alone = append(p.alone, float64(took[len(took)/2].Nanoseconds())/1e3)
		default:
			p.rate = append(p.rate, float64(len(took))/elapsed.Seconds())
			p.cpu = append(p.cpu, float64(used.Microseconds())/float64(len(took)))
		}
	}
}

// clientAlone is the median time of a call by mesh.Client, in microseconds.
func clientAlone(t *testing.T, url string) float64 {
	t.Helper()
	out, err := exec.Command(extctl, "bench", "ext_fast_t00000", `{"text":"hello","n":1}`, "--server", url, "--duration", "1s", "--json").Output()
	var r struct {
		P50 float64 `json:"p50_us"`
	}
	if err != nil || json.Unmarshal(out, &r) != nil || r.P50 == 0 {
		t.Fatalf("extctl bench: %v\n%s", err, out)
	}
	return r.P50
}

// listTime is the median time of ten lists of n tools, with all pages, and the memory of the server after them.
func listTime(t *testing.T, url, id string, n int) string {
	t.Helper()
	p := newPipe(t, url, "--only", id)
	eventually(t, "the list is complete", func() bool { return len(listTools(t, p.conversation)) == n })
	var took []float64
	bytes := 0
	for range 10 {
		began := time.Now()
		bytes = 0
		for cursor := ""; ; {
			page := p.ask("tools/list", "{"+cursor+"}")
			bytes += len(page)
			_, next, more := strings.Cut(string(page[max(0, len(page)-500):]), `"nextCursor":`)
			if !more {
				break
			}
			next, _, _ = strings.Cut(next, "}")
			next, _, _ = strings.Cut(next, ",")
			cursor = `"cursor":` + next
		}
		took = append(took, float64(time.Since(began).Microseconds()))
	}
	return fmt.Sprintf("%.2f ms, %d KB; memory %s", median(took)/1e3, bytes>>10, p.resident(t))
}

// changes measures how long after a call that adds a tool the client is notified.
func changes(t *testing.T, url string) string {
	t.Helper()
	p := newPipe(t, url)
	var took []float64
	for i := range 7 {
		<-time.After(1200 * time.Millisecond) // further notifications within a second are combined
		began := time.Now()
		p.last++
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"ext_child_add_tool","arguments":{"name":"n%d"}}}`, p.last, i))
		for notified, answered := false, false; !notified || !answered; {
			line, ok := <-p.lines
			if !ok {
				t.Fatal("the server has ended")
			}
			answered = answered || strings.Contains(line, `"id":`)
			if strings.Contains(line, "notifications/tools/list_changed") {
				notified = true
				took = append(took, float64(time.Since(began).Microseconds()))
			}
		}
	}
	return fmt.Sprintf("%.0f ms, at most %.0f ms", median(took)/1e3, slices.Max(took)/1e3)
}
