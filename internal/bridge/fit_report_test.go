package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestFitReport: a report of any size is made to fit, and counts what was left out.
func TestFitReport(t *testing.T) {
	report := func(extensions, problems, message int) (h wire.Host) {
		h = wire.Host{Bridge: "b1", Version: "1.0.0", Extensions: []string{}}
		for n := range extensions {
			h.Extensions = append(h.Extensions, fmt.Sprintf("extension-with-a-long-name-%06d", n))
		}
		for n := range problems {
			h.Problems = append(h.Problems, wire.HostProblem{Path: fmt.Sprint("/srv/", n), Kind: "invalid", Message: strings.Repeat("<", message)})
		}
		return h
	}
	for _, tc := range []struct {
		name                          string
		extensions, problems, message int
		limit                         int
		wantExtensions, wantProblems  int // at least; -1: null
	}{
		{"small", 10, 10, 100, maxReport, 10, 10},
		{"many problems", 10, 20_000, 100, maxReport, 10, 700},
		{"one long message", 10, 2, 10 * maxReport, maxReport, 10, 2},
		{"small messages of NATS", 10, 1000, 100, 20_000, 10, 20},
		{"many extensions", 20_000, 10, 100, maxReport, -1, 10},
	} {
		h := fitReport(report(tc.extensions, tc.problems, tc.message), tc.limit)
		if size := encodedSize(h); size > tc.limit {
			t.Errorf("%s: %d bytes, over %d", tc.name, size, tc.limit)
		}
		if len(h.Problems) < tc.wantProblems || len(h.Problems)+h.ProblemsLeftOut != tc.problems {
			t.Errorf("%s: %d problems and %d left out, of %d", tc.name, len(h.Problems), h.ProblemsLeftOut, tc.problems)
		}
		if (h.Extensions == nil) != (tc.wantExtensions < 0) || len(h.Extensions)+h.ExtensionsLeftOut != tc.extensions {
			t.Errorf("%s: %d extensions and %d left out, of %d", tc.name, len(h.Extensions), h.ExtensionsLeftOut, tc.extensions)
		}
	}
}
