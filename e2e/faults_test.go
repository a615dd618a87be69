package e2e

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/extmesh/extmesh/internal/config"
)

// fault is one way in which an extension can fail the mesh: a row of the table in docs/operations.md, the child that
// behaves so, and the test that what the row says is true.
type fault struct {
	mode string // its name; E2E_MODE=child:<mode>, and the extension's id

	does     string // what the child does
	caller   string // what the caller sees
	operator string // what the operator sees
	bridge   string // what the bridge does

	kid      func(k *kid)                // the child; nil: whatever manifest starts
	mcp      bool                        // it speaks MCP
	tools    []string                    // that it offers, besides echo
	set      func(s *config.Supervision) // its settings
	more     string                      // further lines of its manifest
	manifest string                      // all of its manifest behind [plugin], instead; $EXE is this binary, $URL is that of web
	web      http.HandlerFunc            // what answers there, until the test decides otherwise
	alone    bool                        // nothing else may run beside it: it measures memory
	test     func(h *host)
}

// faults is all of them, in the order of the table. It is a func and not a variable since kids, which look
// themselves up here, are in it.
func faults() []fault {
	return slices.Concat(handshakeFaults, lifeFaults, leftoverFaults, byteFaults, messageFaults, dialectFaults, callFaults, loadFaults, memberFaults, httpFaults)
}

// TestFaults runs every fault through a real bridge, registry and NATS server. While it lasts a neighbour on the same
// bridge is called and must not notice; when it is over the bridge stops within five seconds and leaves no process.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	besideEachOther(t, faults(), func(t *testing.T, f fault, again func()) {
		h := w.host(t, f)
		h.again = again
		f.test(h)
	})
}

// besideEachOther runs rows as NAME of "row". What was too slow beside the others, and nothing worse, is tried again
// with nothing beside it, twice if need be: the machine may have had other things to do.
func besideEachOther(t *testing.T, rows []fault, test func(t *testing.T, f fault, again func())) {
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

// tooSlow fails the row, or has it tried again.
func (h *host) tooSlow(format string, args ...any) {
	h.Helper()
	if h.again == nil {
		h.Errorf(format, args...)
		return
	}
	h.Logf(format, args...)
	h.again()
}
