package e2e

import (
	"net/http"
	"slices"
	"testing"
	"time"

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
	alone    bool                        // does not run in parallel with other tests: it measures memory or counts goroutines
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
	t.Parallel()
	w := newSharedMesh(t)
	rows := slices.DeleteFunc(faults(), func(f fault) bool { return f.alone })
	runRows(t, rows, func(t *testing.T, f fault) { f.test(w.host(t, f)) })
}

// TestFaultsAlone runs the faults that TestFaults leaves out, one after the other and before all parallel tests.
func TestFaultsAlone(t *testing.T) {
	w := newSharedMesh(t)
	for _, f := range faults() {
		if f.alone {
			t.Run("row/"+f.mode, func(t *testing.T) { f.test(w.host(t, f)) })
		}
	}
}

// runRows runs each row as subtest row/NAME, in parallel.
func runRows(t *testing.T, rows []fault, test func(t *testing.T, f fault)) {
	t.Run("row", func(t *testing.T) {
		for _, f := range rows {
			t.Run(f.mode, func(t *testing.T) {
				t.Parallel()
				test(t, f)
			})
		}
	})
}

// busy is how much longer something may take in these tests than on an idle machine. It is less than the default timeout
// of a call, which ends what would otherwise never end. `go run ./bench faults` measures the times.
const busy = 20 * time.Second
