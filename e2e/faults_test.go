package e2e

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/extmesh/extmesh/internal/config"
)

// fault is one way in which an extension can misbehave: a row of the table in docs/operations.md, a child process that
// behaves that way, and a test of the row's claims.
type fault struct {
	mode string // its name; E2E_MODE=child:<mode>, and the extension's id

	does     string // what the child does
	caller   string // what the caller sees
	operator string // what the operator sees
	bridge   string // what the bridge does

	child    func(k *testChild)          // the child process; nil: the program that manifest names
	mcp      bool                        // the dialect is MCP
	tools    []string                    // the tools in addition to echo
	set      func(s *config.Supervision) // changes the settings
	more     string                      // lines added to the manifest
	manifest string                      // replaces the manifest after [plugin]; $EXE is this binary, $URL the address of web
	web      http.HandlerFunc            // the HTTP server at $URL; the test may replace it
	alone    bool                        // does not run in parallel with other rows: it measures memory
	test     func(h *host)
}

// faults returns all faults in the order of the table. It is a function because a variable would refer to itself: test
// children look up their row here.
func faults() []fault {
	return slices.Concat(handshakeFaults, exitFaults, leftoverFaults, byteFaults, messageFaults, dialectFaults, callFaults, loadFaults, memberFaults, httpFaults)
}

// TestFaults runs every fault with a real bridge, registry and NATS server. Meanwhile another extension on the same
// bridge is called and must not be affected. Afterwards the bridge must stop within five seconds and leave no process.
func TestFaults(t *testing.T) {
	w := newSharedMesh(t)
	runRows(t, faults(), func(t *testing.T, f fault, again func()) {
		h := w.host(t, f)
		h.again = again
		f.test(h)
	})
}

// runRows runs each row as subtest row/NAME, in parallel. A row that was only too slow is repeated alone, up to twice:
// the machine may have been busy.
func runRows(t *testing.T, rows []fault, test func(t *testing.T, f fault, again func())) {
	slow := make([]atomic.Bool, len(rows))
	t.Run("row", func(t *testing.T) {
		for n, f := range rows {
			t.Run(f.mode, func(t *testing.T) {
				if !f.alone {
					t.Parallel()
				}
				test(t, f, func() { slow[n].Store(true) })
			})
		}
	})
	for n, f := range rows {
		for left := 2; left > 0 && slow[n].Swap(false); left-- {
			again := func() { slow[n].Store(true) }
			if left == 1 {
				again = nil
			}
			t.Run("alone/"+f.mode, func(t *testing.T) { test(t, f, again) })
		}
	}
}

// tooSlow schedules the row to be repeated, or fails it if it was the last attempt.
func (h *host) tooSlow(format string, args ...any) {
	h.Helper()
	if h.again == nil {
		h.Errorf(format, args...)
		return
	}
	h.Logf(format, args...)
	h.again()
}
