package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestProblemsAreLimited: a child that lists one tool many times fills neither the catalog nor, when its list is read
// again and again, the log.
func TestProblemsAreLimited(t *testing.T) {
	repeated := func(n int) *handshake {
		hs := &handshake{dialect: "mcp", raw: json.RawMessage(`{"protocolVersion":"2025-11-25"}`)}
		for range n + 1 {
			hs.tools = append(hs.tools, wire.Tool{Own: "same", InputSchema: json.RawMessage(`{}`)})
		}
		if err := hs.finish(wire.Handshake{}, &workload{announce: wire.Announce{Parent: "p"}}); err != nil {
			t.Fatal(err)
		}
		return hs
	}
	var log bytes.Buffer
	a := wire.Announce{ID: "lister", Version: "1.0.0"}
	s := &instance{workload: &workload{announce: a}, mesh: serve.NewPublisher(nil, serve.PublisherOptions{Prefix: wire.DefaultPrefix}).Join(a), log: slog.New(slog.NewTextHandler(&log, nil))}
	r := &run{inst: s, f: &forwarder{}}
	for _, tt := range []struct {
		problems, reported int
		last               string
		logged             int // lines in the log so far
	}{
		{2, 2, "is left out", 2},
		{2, 2, "is left out", 2}, // the same again
		{maxProblems, maxProblems, "is left out", 2 + maxProblems},
		{9000, maxProblems + 1, "8980 more problems are left out", 2 + maxProblems + maxProblems + 1},
		{9000, maxProblems + 1, "8980 more problems are left out", 2 + maxProblems + maxProblems + 1},
	} {
		hs := repeated(tt.problems)
		if n := len(hs.problems); n != tt.reported || !strings.Contains(hs.problems[n-1].Message, tt.last) {
			t.Errorf("of %d problems %d are reported, the last one: %v", tt.problems, n, hs.problems[n-1])
		}
		r.applyHandshake(hs)
		if n := strings.Count(log.String(), "\n"); n != tt.logged {
			t.Errorf("%d lines are in the log, want %d", n, tt.logged)
		}
	}
}

// TestContextError: a call with the same deadline as its context may time out before the context does. contextError waits
// for the context, which has the error to report.
func TestContextError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the limit"))
		defer cancel()
		if err := contextError(t.Context()); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
		if err := contextError(limit); err != nil {
			t.Errorf("before the deadline: %v", err)
		}
		if err := contextError(early{limit}); !errors.Is(err, context.DeadlineExceeded) || context.Cause(limit).Error() != "the limit" {
			t.Errorf("after the deadline, before its timer: %v because of %v", err, context.Cause(limit))
		}
	})
}

// early is a context with a deadline that has passed before its timer fires.
type early struct{ context.Context }

func (early) Deadline() (time.Time, bool) { return time.Now(), true }
