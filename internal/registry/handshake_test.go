package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// failure returns the spec's diagnostic of a failed handshake.
func (b *bed) failure(id string) string {
	s, _ := b.spec(id)
	for _, d := range s.Diagnostics {
		if d.Code == "handshake_failed" {
			return d.Message
		}
	}
	return ""
}

// TestHandshakesInParallel: extensions that do not answer do not delay others. After ten seconds the spec has a
// diagnostic, and the handshake is repeated with their heartbeats.
func TestHandshakesInParallel(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		start := time.Now()
		var silent []*fakeExt
		for n := range 20 {
			e := b.ext(fmt.Sprint("silent", n), "1.0.0", fmt.Sprint("s", n), "get")
			e.ignoreInitialize = true
			e.up()
			e.sendHeartbeats()
			silent = append(silent, e)
		}
		good := b.ext("good", "1.0.0", "n", "get")
		good.up()
		b.await("the good one is shown", func() bool { s, _ := b.spec("good"); return len(s.Tools) == 1 })
		if d := time.Since(start); d > time.Second {
			t.Errorf("shown after %v", d)
		}
		for time.Since(start) < 9*time.Second { // fake time
			time.Sleep(100 * time.Millisecond)
		}
		if got := b.failure("silent0"); got != "" {
			t.Errorf("given up early: %s", got)
		}
		b.await("all failures show", func() bool {
			for _, e := range silent {
				if !strings.Contains(b.failure(e.a.ID), "within 10s") {
					return false
				}
			}
			return true
		})
		if d := time.Since(start); d > 11*time.Second {
			t.Errorf("all shown after %v", d)
		}
		if d := b.state("silent0"); d.State != heartbeat.Ready {
			t.Errorf("it sends heartbeats, and its state is %s", d.State)
		}
		for _, e := range silent {
			e.mu.Lock()
			e.ignoreInitialize = false
			e.mu.Unlock()
		}
		start = time.Now()
		time.Sleep(2 * time.Second) // fake time; handshakes repeated meanwhile have ten seconds
		b.await("the handshakes are repeated", func() bool {
			s, _ := b.spec("silent19")
			return len(s.Tools) == 1 && b.failure("silent19") == ""
		})
		if d := time.Since(start); d > 11*time.Second { // the timeout of the attempt before, and a heartbeat
			t.Errorf("shown after %v", d)
		}
	})
}

// TestHandshakeRefused: an answer to initialize that is too large for a message becomes a diagnostic with the reason.
func TestHandshakeRefused(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	e := b.ext("weather", "1.0.0", "n", "get")
	e.fault = rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: 5_000_000, Limit: 1_000_000}, "the answer of 5000000 bytes does not fit into a message of 1000000")
	e.up()
	b.await("the reason shows", func() bool { return strings.Contains(b.failure("weather"), "does not fit into a message of 1000000") })
	if s, _ := b.spec("weather"); len(s.Tools) != 0 || s.Version != "1.0.0" {
		t.Errorf("spec: %+v", s)
	}
	e.mu.Lock()
	e.fault = nil
	e.mu.Unlock()
	e.heartbeat(heartbeat.Ready)
	b.await("it is shown", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 1 && len(s.Diagnostics) == 0 })
}

// TestNativeMCPServer: an MCP server that is itself on the mesh gives its tools, and the digests of its other lists, in its
// answer to initialize. Without them it is ready without tools or lists, and a diagnostic states what to do, unless the server
// declares that it has none.
func TestNativeMCPServer(t *testing.T) {
	for name, tc := range map[string]struct {
		members     string // of the answer to initialize
		tools       int
		diagnostics string
	}{
		"with tools":             {`"capabilities":{"tools":{}},"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"b","inputSchema":{"type":"object"}}]`, 2, ""},
		"without tools":          {`"capabilities":{"tools":{}}`, 0, "no_tools"},
		"without capabilities":   {`"instructions":"none"`, 0, "no_tools"},
		"an empty list":          {`"capabilities":{"tools":{}},"tools":[]`, 0, ""},
		"no capability of tools": {`"capabilities":{"completions":{}}`, 0, ""},
		"with lists":             {`"capabilities":{"prompts":{}},"lists":{"prompts":{"count":1,"digest":"d"}}`, 0, ""},
		"without lists":          {`"capabilities":{"prompts":{}}`, 0, "no_lists"},
		"lists of another form":  {`"capabilities":{"resources":{}},"lists":{"resources":["a"]}`, 0, "no_lists"},
		"lists of a bridge":      {`"capabilities":{"resources":{}},"lists":{}`, 0, ""}, // which could not read them
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				r, _ := b.registry(Config{})
				b.leading(r)
				e := b.ext("wrapped", "1.0.0", "n")
				e.silence()
				sub, err := e.nc.Subscribe(prefix.InstanceRPC("wrapped", "n"), func(m *nats.Msg) {
					if err := m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"w","version":"1.2.3"},` + tc.members + `}}`)); err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				e.sub = sub
				b.flush(e.nc)
				e.up()
				b.await("its answer is shown", func() bool { s, _ := b.spec("wrapped"); return s.Dialect == "mcp" && s.Server != nil })
				s, _ := b.spec("wrapped")
				var codes []string
				for _, d := range s.Diagnostics {
					codes = append(codes, d.Code)
				}
				if len(s.Tools) != tc.tools || strings.Join(codes, " ") != tc.diagnostics {
					t.Errorf("%d tools, diagnostics %v; want %d and %q", len(s.Tools), s.Diagnostics, tc.tools, tc.diagnostics)
				}
			})
		})
	}
}
