package bridge

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// mcpServer answers the requests of a handshake as an MCP server does. Its first failures answers to tools/list are errors.
type mcpServer struct {
	fakeLink
	failures int
	listed   int
}

const (
	mcpInitialize = `{ "serverInfo": {"version":"2.0","name":"demo"}, "protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},"instructions":"Be brief.","x":1}`
	mcpFirst      = `{"inputSchema": {"type":"object"}, "name":"b","title":"B","z":1.0}`
	mcpSecond     = `{"name":"a","inputSchema":{"$schema":"x"}}`
)

func (m *mcpServer) Call(_ context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	switch {
	case method == "initialize":
		return json.RawMessage(mcpInitialize), nil
	case method == "tools/list" && m.failures > 0:
		m.failures--
		return nil, &rpc.Error{Code: -32603, Message: "the database is not open yet"}
	case method == "tools/list" && len(params) == 0:
		m.listed++
		return json.RawMessage(`{"tools":[ ` + mcpFirst + ` ],"nextCursor":"2"}`), nil
	}
	return json.RawMessage(`{"tools":[` + mcpSecond + `]}`), nil
}

// TestServersOwnAnswers: an MCP client on the mesh gets what the server itself has answered to initialize and tools/list,
// in its order, while a registry gets both dialects in one answer.
func TestServersOwnAnswers(t *testing.T) {
	m := &mcpServer{}
	hs, err := exchangeHandshake(t.Context(), m, &workload{announce: wire.Announce{Parent: "p"}}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := testForwarder(m)
	f.handshake.Store(hs)
	for _, tt := range []struct{ method, params, want string }{
		{"initialize", `{"protocolVersion":"2025-11-25"}`, mcpInitialize},
		{"tools/list", ``, `{"tools":[` + mcpFirst + `,` + mcpSecond + `]}`},
	} {
		got, err := f.Handle(t.Context(), &rpc.Request{Method: tt.method, Params: json.RawMessage(tt.params)})
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %v\n got %s\nwant %s", tt.method, err, got, tt.want)
		}
	}
	got, err := f.Handle(t.Context(), &rpc.Request{Method: "initialize", Params: json.RawMessage(`{"agent_version":"1","extension_id":"p.demo","protocolVersion":"2025-11-25"}`)})
	parsed, parseErr := wire.ParseHandshake(got)
	if err != nil || parseErr != nil || len(parsed.Tools) != 2 || parsed.Server == nil || parsed.Server.Instructions != "Be brief." || !parsed.Server.Offers("prompts") ||
		parsed.Server.Offers("resources") || parsed.Server.Name() != "demo" || parsed.ServerVersion != "2.0" {
		t.Errorf("the registry gets %s, %v, %v", got, err, parseErr)
	}
}

// TestHashHasDeclared: a server that declares something else has another hash, so that the registry reads it again.
func TestHashHasDeclared(t *testing.T) {
	hashes := map[string]bool{}
	for _, server := range []*wire.Server{{ProtocolVersion: "1"}, {ProtocolVersion: "1", Instructions: "x"}, {ProtocolVersion: "1", Instructions: "x"}} {
		hash, err := withServer("abc", server)
		if err != nil {
			t.Fatal(err)
		}
		hashes[hash] = true
	}
	if len(hashes) != 2 {
		t.Errorf("%d hashes, want 2", len(hashes))
	}
}

// runOf is a run of a workload after its handshake with m.
func runOf(m *mcpServer, w *workload, hs *handshake) *run {
	s := &instance{workload: w, log: slog.New(slog.DiscardHandler), mesh: serve.NewPublisher(nil, serve.PublisherOptions{Prefix: wire.DefaultPrefix}).Join(w.announce)}
	f := testForwarder(m)
	f.handshake.Store(hs)
	return &run{inst: s, f: f}
}

// TestToolsListFails: a server that answers tools/list with an error is ready without tools, and the list is requested again, with
// growing pauses, until it lists them.
func TestToolsListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mcpServer{failures: 4}
		w := &workload{announce: wire.Announce{ID: "late", Version: "1.0.0", Parent: "p"}}
		hs, err := exchangeHandshake(t.Context(), m, w, "", nil)
		if err != nil || !hs.incomplete || len(hs.tools) != 0 || len(hs.problems) != 1 || hs.problems[0].Code != "no_tools" ||
			!strings.Contains(hs.problems[0].Message, "the database is not open yet") {
			t.Fatalf("%+v, %v", hs, err)
		}
		r := runOf(m, w, hs)
		f := r.f
		ctx, cancel := context.WithCancel(t.Context())
		r.retryIncomplete(false, 0)
		began := time.Now()
		stop := f.relist.start(ctx, r.relist)
		for f.handshake.Load().incomplete && pause.For(ctx, time.Second) && time.Since(began) < time.Hour {
			synctest.Wait()
		}
		if took := time.Since(began); took < 15*time.Second || took > 40*time.Second || m.failures != 0 || m.listed != 1 {
			t.Errorf("after %s there are %d failures left, and the tools were listed %d times", took, m.failures, m.listed)
		}
		if now := f.handshake.Load(); now.incomplete || len(now.tools) != 2 || len(now.problems) != 0 {
			t.Errorf("%+v", now)
		}
		cancel()
		stop()
	})
}

// TestOneRetry: readings for other reasons put the retry off. They do not add one each.
func TestOneRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runOf(&mcpServer{}, &workload{announce: wire.Announce{ID: "late", Version: "1.0.0", Parent: "p"}}, &handshake{incomplete: true})
		for range 5 {
			r.retryIncomplete(true, 0)
		}
		time.Sleep(15 * time.Second) // the pause is 16 s now
		if len(r.f.relist) > 0 {
			t.Error("an earlier retry runs")
		}
		time.Sleep(2 * time.Second)
		if len(r.f.relist) == 0 {
			t.Error("no retry")
		}
	})
}

// TestListChangeFails: if the lists cannot be read after the server has announced a change, they are read again.
func TestListChangeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mcpServer{}
		w := &workload{announce: wire.Announce{ID: "late", Version: "1.0.0", Parent: "p"}}
		hs, err := exchangeHandshake(t.Context(), m, w, "", nil)
		if err != nil || len(hs.tools) != 2 {
			t.Fatalf("%+v, %v", hs, err)
		}
		r := runOf(m, w, hs)
		f := r.f
		ctx, cancel := context.WithCancel(t.Context())
		m.failures, m.listed = 3, 0
		stop := f.relist.start(ctx, r.relist)
		f.relist.send()
		time.Sleep(time.Minute) // fake time
		synctest.Wait()
		if m.failures != 0 || m.listed != 1 {
			t.Errorf("there are %d failures left, and the tools were listed %d times", m.failures, m.listed)
		}
		cancel()
		stop()
	})
}

// TestAgentVersion: a build without a tag counts as the last release, and one after a tag as that tag.
func TestAgentVersion(t *testing.T) {
	for own, want := range map[string]string{
		"devel": lastRelease, "": lastRelease, "0.0.0-20261127-abc": lastRelease, "0.3.0": "0.3.0", "0.3.0-rc.1": "0.3.0-rc.1",
		"0.3.0-3-gabc1234": "0.3.0", "0.3.0-rc.1-12-gabc1234": "0.3.0-rc.1", "abc1234": lastRelease,
	} {
		if got := newPlanner(Config{Version: own}).agentVersion(); got != want {
			t.Errorf("%s: %s, want %s", own, got, want)
		}
	}
}
