package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
)

// TestMCPDrain stops the server while a call runs: it completes. Before that it reads the health endpoints.
func TestMCPDrain(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	putWeather(t, b.kv)
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	arrived, release := make(chan struct{}), make(chan struct{})
	_, err = nc.QueueSubscribe("ext.weather.rpc", "q", func(m *nats.Msg) {
		env, err := jsonrpc.Scan(m.Data)
		if err != nil {
			t.Error(err)
		}
		close(arrived)
		<-release
		_ = m.Respond(jsonrpc.AppendResult(nil, env.ID, []byte(`{"done":1}`)))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, outW := io.Pipe()
	var stderr logBuffer
	code := make(chan int, 1)
	go func() { // ends with ctx
		code <- run(ctx, []string{"mcp", "--server", b.url, "--wait", "30s", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "info"},
			strings.NewReader(""), outW, &stderr, func(string) string { return "" })
		outW.Close()
	}()
	url := make([]byte, 100)
	n, err := out.Read(url)
	if err != nil {
		t.Fatal(err)
	}
	at := ""
	natstest.Eventually(t, "the address of the health endpoints", func() bool {
		m := regexp.MustCompile(`health endpoints" addr=(\S+)`).FindStringSubmatch(stderr.String())
		if m != nil {
			at = m[1]
		}
		return m != nil
	})
	get := func(path string) string {
		res, err := http.Get("http://" + at + path)
		if err != nil {
			return ""
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return string(text)
	}
	natstest.Eventually(t, "it is ready", func() bool { return get("/readyz") == "ok\n" })
	if text := get("/metrics"); !strings.Contains(text, "extmesh_mcp_sessions 0\n") || !strings.Contains(text, "extmesh_nats_connected 1\n") {
		t.Errorf("the metrics are %s", text)
	}
	answer := make(chan string, 1)
	go func() { // ends with the answer
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_weather_exact","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
		r, err := http.NewRequest("POST", strings.TrimSpace(string(url[:n])), strings.NewReader(body))
		if err != nil {
			answer <- err.Error()
			return
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "*/*", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "ext_weather_exact"} {
			r.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	<-arrived
	cancel()
	natstest.Eventually(t, "it is not ready", func() bool { return get("/readyz") == "stopping\n" })
	if text := get("/healthz"); text != "ok\n" {
		t.Errorf("while the call completes, /healthz is %q", text)
	}
	close(release)
	if text := <-answer; !strings.Contains(text, `"done":1`) {
		t.Errorf("the call in flight ends with %s", text)
	}
	if c := <-code; c != exitOK && c != 130 {
		t.Errorf("exit code %d\n%s", c, stderr.String())
	}
	if text := get("/healthz"); text != "" {
		t.Errorf("the health endpoints have not ended: %s", text)
	}
}
