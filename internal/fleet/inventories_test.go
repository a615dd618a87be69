package fleet

import (
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestManifestsThatDiffer: two hosts have different manifests of a service, with one version. The catalog shows one of them,
// whichever bridge was last to list its own. A change on the host whose manifest is shown takes effect.
func TestManifestsThatDiffer(t *testing.T) {
	f := testFleet(t)
	seq := uint64(0)
	list := func(bridge, version, hash string) {
		seq++
		v := message(wire.InventoryFull, seq, wire.InventoryInstance{Announce: wire.Announce{ID: "x", Version: version, Transport: "nats", ManifestHash: hash}})
		v.Bridge = bridge
		f.send("host", bridge, string(encode(t, v)))
	}
	shows := func(when, hash string) {
		t.Helper()
		if a := f.exts["x"].announcements[""]; a.ManifestHash != hash {
			t.Errorf("%s: the manifest %s is shown, want %s", when, a.ManifestHash, hash)
		}
	}
	list("a", "1.0.0", "5")
	list("a", "1.0.0", "3")
	shows("after a change on the only host", "3")
	for range 2 {
		list("b", "1.0.0", "4")
		shows("after the inventory of b", "4")
		list("a", "1.0.0", "3")
		shows("after the inventory of a", "4")
	}
	list("b", "1.0.0", "2")
	shows("after a change on b", "2")
	list("a", "1.1.0", "1")
	shows("after a higher version on a", "1")
	list("b", "1.0.0", "9")
	shows("after a lower version on b", "1")
}
