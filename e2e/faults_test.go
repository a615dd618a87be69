package e2e

import (
	"net/http"
	"slices"
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
	for _, f := range faults() {
		t.Run(f.mode, func(t *testing.T) {
			if !f.alone {
				t.Parallel()
			}
			f.test(w.host(t, f))
		})
	}
}
