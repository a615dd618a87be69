package bridge

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestProblemsAreBounded: a child that lists one tool again and again fills neither the catalog nor, when its list is
// read again and again, the log.
func TestProblemsAreBounded(t *testing.T) {
	repeated := func(n int) *handshake {
		hs := &handshake{dialect: "mcp", raw: json.RawMessage(`{"protocolVersion":"2025-11-25"}`)}
		for range n + 1 {
			hs.tools = append(hs.tools, mesh.Tool{Own: "same", InputSchema: json.RawMessage(`{}`)})
		}
		if err := hs.finish(mesh.Handshake{}, &unit{announce: mesh.Announce{Parent: "p"}}); err != nil {
			t.Fatal(err)
		}
		return hs
	}
	var log bytes.Buffer
	a := mesh.Announce{ID: "lister", Version: "1.0.0"}
	s := &slot{unit: &unit{announce: a}, mesh: mesh.NewNode(nil, mesh.NodeOptions{Prefix: mesh.DefaultPrefix}).Join(a), log: slog.New(slog.NewTextHandler(&log, nil))}
	f := &forwarder{}
	for _, tt := range []struct {
		problems, told int
		last           string
		logged         int // by then
	}{
		{2, 2, "is left out", 2},
		{2, 2, "is left out", 2}, // the same again
		{maxProblems, maxProblems, "is left out", 2 + maxProblems},
		{9000, maxProblems + 1, "8980 more problems are left out", 2 + maxProblems + maxProblems + 1},
		{9000, maxProblems + 1, "8980 more problems are left out", 2 + maxProblems + maxProblems + 1},
	} {
		hs := repeated(tt.problems)
		if n := len(hs.problems); n != tt.told || !strings.Contains(hs.problems[n-1].Message, tt.last) {
			t.Errorf("of %d problems %d are told, the last one: %v", tt.problems, n, hs.problems[n-1])
		}
		s.learn(f, hs)
		if n := strings.Count(log.String(), "\n"); n != tt.logged {
			t.Errorf("%d lines are in the log, want %d", n, tt.logged)
		}
	}
}
