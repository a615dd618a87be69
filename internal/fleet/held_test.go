package fleet

import (
	"slices"
	"testing"
)

// TestHeldWithoutCatalog: a state that this leader has not restored yet is not written while the copy of the catalog has a
// gap, and no spec before all are restored.
func TestHeldWithoutCatalog(t *testing.T) {
	f := largeFleet(0)
	f.unrestored["known"] = true
	held := func() (out []bool) {
		for _, key := range []string{StateKey("known"), SpecKey("known"), SpecKey("other"), StateKey("other"), HostKey("b")} {
			out = append(out, f.Held(key))
		}
		return out
	}
	f.catalog = testCatalog{gap: true}
	if got := held(); !slices.Equal(got, []bool{true, true, true, false, false}) {
		t.Errorf("with a gap: %v", got)
	}
	f.catalog = testCatalog{}
	if got := held(); !slices.Equal(got, []bool{false, true, true, false, false}) {
		t.Errorf("without a gap: %v", got)
	}
	clear(f.unrestored)
	if got := held(); slices.Contains(got, true) {
		t.Errorf("when all is restored: %v", got)
	}
}
