package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// mcpRun is an extctl mcp that runs in this process.
type mcpRun struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	err  logBuffer
	code chan int
	stop func() // as SIGTERM does
}

func startMCP(t *testing.T, args ...string) *mcpRun {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	m := &mcpRun{t: t, in: inW, out: bufio.NewReader(outR), code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	m.stop = cancel
	done := make(chan struct{})
	go func() { // ends with the input or ctx
		defer close(done)
		m.code <- run(ctx, append([]string{"mcp"}, args...), inR, outW, &m.err, func(string) string { return "" })
		outW.Close()
	}()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
		cancel()
		<-done
	})
	return m
}

// ask sends a message and returns the next line of the server.
func (m *mcpRun) ask(line string) string {
	m.t.Helper()
	if _, err := io.WriteString(m.in, line+"\n"); err != nil {
		m.t.Fatal(err)
	}
	return m.next()
}

func (m *mcpRun) next() string {
	m.t.Helper()
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() { // ends with the line, or when the test closes the output
		line, err := m.out.ReadString('\n')
		got <- read{line, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			m.t.Fatalf("%v\n%s", r.err, m.err.String())
		}
		return r.line
	case <-time.After(time.Minute):
		m.t.Fatalf("no message\n%s", m.err.String())
		return ""
	}
}

const (
	listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	mcpHello  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
)

// putWeather writes an extension with one tool into the catalog.
func putWeather(t *testing.T, kv jetstream.KeyValue) {
	t.Helper()
	for key, doc := range map[string]any{
		"spec.weather": mesh.Spec{ID: "weather", Version: "1.0.0", Dialect: "ext", Subject: "ext.weather.rpc",
			Tools: []mesh.Tool{{Name: "ext_weather_exact", Own: "exact", InputSchema: wire.EmptySchema}}},
		"state.weather": mesh.StateDoc{State: heartbeat.Ready, Available: true, Since: time.Now(), Instances: []mesh.InstanceState{}},
	} {
		data, err := json.Marshal(doc)
		if err == nil {
			_, err = kv.Put(t.Context(), key, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestMCP(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	putWeather(t, b.kv)
	if err := b.fakeExtension("weather"); err != nil {
		t.Fatal(err)
	}
	m := startMCP(t, "--server", b.url, "--wait", "30s")
	if got := m.ask(listTools); !strings.Contains(got, `"ext_weather_exact"`) {
		t.Errorf("the list is %s", got)
	}
	call := `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"ext_weather_exact"}}`
	if got := m.ask(call); !strings.Contains(got, `"structuredContent":{"big":9007199254740993, "huge":1e400,"one":1.0,"html":"<&>","esc":"\u00e9\/"}`) {
		t.Errorf("the result is %s", got)
	}
	m.in.Close()
	if code := <-m.code; code != exitOK {
		t.Errorf("exit code %d after the end of the input\n%s", code, m.err.String())
	}
}

// TestMCPInterrupted: a signal ends the server while its client keeps the input open. That is not an error.
func TestMCPInterrupted(t *testing.T) {
	t.Parallel()
	m := startMCP(t, "--server", "nats://"+freeport.Addr(t))
	m.ask(mcpHello)
	m.stop()
	if code := <-m.code; code != exitOK {
		t.Errorf("exit code %d after a signal\n%s", code, m.err.String())
	}
}

// TestMCPWithoutMesh starts the server before NATS: it answers, and notifies the client when tools are there.
func TestMCPWithoutMesh(t *testing.T) {
	t.Parallel()
	port := freeport.Port(t)
	srv := natstest.Start(t, &server.Options{Port: port, JetStream: true})
	url := srv.ClientURL()
	kv, err := natstest.JetStream(t, srv.Connect()).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "ext_catalog", RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"}})
	if err != nil {
		t.Fatal(err)
	}
	putWeather(t, kv)
	srv.Stop()
	m := startMCP(t, "--server", url, "--wait", "0s")
	if got := m.ask(mcpHello); !strings.Contains(got, `"instructions":"The tool mesh is not reachable at the moment`) {
		t.Errorf("initialize: %s", got)
	}
	if got := m.ask(listTools); !strings.Contains(got, `"tools":[]`) {
		t.Errorf("the list without a mesh is %s", got)
	}
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_weather_exact"}}`
	if got := m.ask(call); !strings.Contains(got, `"isError":true`) || !strings.Contains(got, "The tool mesh is not reachable") {
		t.Errorf("the result without a mesh is %s", got)
	}
	srv.Restart(nil)
	if got := m.next(); !strings.Contains(got, "notifications/tools/list_changed") {
		t.Errorf("after the start of NATS: %s", got)
	}
	if got := m.ask(listTools); !strings.Contains(got, `"ext_weather_exact"`) {
		t.Errorf("the list is %s", got)
	}
}

func TestMCPUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"--names mine", `names "mine": want registered or own`},
		{"--tools some", `tools "some": want auto, all or search`},
		{"--name-limit 10", "name limit 10: want 24 to 64"},
		{"--only [", `pattern "["`},
		{"--up no-such-directory", "no-such-directory"},
		{"--prefix a_b", "prefix"},
		{"--timeout -1s", "want a positive duration"},
		{"extra", "takes no arguments"},
		{"--http 0.0.0.0:0", "clients need tokens"},
		{"--http 127.0.0.1:0 --allow-host mcp.example.com:7331", "without scheme and port"},
		{"--http 127.0.0.1:0 --allow-host https://mcp.example.com", "without scheme and port"},
		{"--http 127.0.0.1:0 --allow-origin https://app.example.com/", "without a path"},
		{"--http 127.0.0.1:0 --allow-origin *", "want scheme and host"},
		{"--http 127.0.0.1:0 --allow-origin https://*", "want scheme and host"},
		{"--http nowhere", "want host:port, :port or unix:PATH"},
		{"--http 127.0.0.1:0 --tokens no-such-file", "no-such-file"},
		{"--http 127.0.0.1:0 --http-cert no-such-file", "no-such-file"},
		{"--profile x", "--profile needs --profiles"},
		{"--profiles no-such-file", "no-such-file"},
		{"--profiles p.yaml --only x", "--only does not apply to profiles: in p.yaml, give them the key only"},
		{"--profiles p.yaml --search-over 7", "give them the key search_over"},
		{"token bad/name", `"bad/name" is not a name`},
	} {
		var out, stderr logBuffer
		code := run(t.Context(), append([]string{"mcp"}, strings.Fields(tt.args)...), strings.NewReader(""), &out, &stderr, func(string) string { return "" })
		if code != exitUsage || !strings.Contains(stderr.String(), tt.want) || out.String() != "" {
			t.Errorf("%s: exit code %d, %q on stdout, %s", tt.args, code, out.String(), stderr.String())
		}
	}
}

// TestMCPOverHTTP serves over TCP and over a Unix socket, with profiles.
func TestMCPOverHTTP(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	putWeather(t, b.kv)
	dir := t.TempDir()
	profiles := filepath.Join(dir, "profiles.yaml")
	if err := os.WriteFile(profiles, []byte("profiles: {none: {exclude: ['*']}, default: {names: own}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restricted := startMCP(t, "--server", b.url, "--wait", "30s", "--profiles", profiles, "--read-only")
	if got := restricted.ask(listTools); !strings.Contains(got, `"tools":[]`) {
		t.Errorf("with --read-only, the profile has %s", got)
	}
	socket := filepath.Join(dir, "s")
	for _, addr := range []string{"127.0.0.1:0", "unix:" + socket} {
		m := startMCP(t, "--server", b.url, "--wait", "30s", "--http", addr, "--profiles", profiles)
		url := strings.TrimSpace(m.next())
		client := http.DefaultClient
		if addr == url[:min(len(addr), len(url))] {
			if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket: %v, %v", info, err)
			}
			url = "http://x/mcp"
			client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			}}}
		}
		for path, want := range map[string]string{"": `"name":"exact"`, "/default": `"name":"exact"`, "/none": `"tools":[]`} {
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
			r, err := http.NewRequestWithContext(t.Context(), "POST", url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "*/*", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
				r.Header.Set(k, v)
			}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%s%s: %v %s", addr, path, err, text)
			}
		}
	}
}

func TestMCPToken(t *testing.T) {
	t.Parallel()
	var out, stderr logBuffer
	if code := run(t.Context(), []string{"mcp", "token", "ada"}, nil, &out, &stderr, func(string) string { return "" }); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	token, rest, _ := strings.Cut(out.String(), "\n")
	_, entry, _ := strings.Cut(rest, "tokens:")
	tokens, err := config.ParseTokens("t", []byte("tokens:"+entry))
	sum := sha256.Sum256([]byte(token))
	if err != nil || tokens[0].Name != "ada" || tokens[0].SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("%v, %+v in %s", err, tokens, out.String())
	}
}

func TestMCPPreview(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	putWeather(t, b.kv)
	preview := func(args ...string) string {
		t.Helper()
		var out, stderr logBuffer
		args = append([]string{"mcp", "preview", "--server", b.url}, args...)
		if code := run(t.Context(), args, nil, &out, &stderr, func(string) string { return "" }); code != exitOK {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr.String())
		}
		return out.String()
	}
	if got := preview(); !strings.HasPrefix(got, "ext_weather_exact\n1 tools, 1 KB, about ") {
		t.Errorf("the preview is %s", got)
	}
	if got := preview("--names", "own", "--tools", "search", "--json"); !strings.Contains(got, `"searching":true,"tools":[{"name":"exact","extension":"weather","tool":"exact","bytes":`) {
		t.Errorf("the preview is %s", got)
	}
	data := `{"state":"gated","reason":"missing env: X","since":"2026-01-01T00:00:00Z","instances":[]}`
	if _, err := b.kv.PutString(t.Context(), "state.weather", data); err != nil {
		t.Fatal(err)
	}
	if got := preview(); !strings.HasPrefix(got, "not offered: weather/exact: the extension is gated\n0 tools") {
		t.Errorf("the preview is %s", got)
	}
}

// TestListenUnix: only a socket on which no process listens is replaced.
func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 2 { // the second time the first one is left
		l, err := listenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "another process listens on "+path) {
			t.Errorf("while another listens: %v", err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil {
		t.Error("a file is replaced")
	}
}
