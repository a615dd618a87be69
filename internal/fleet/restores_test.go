package fleet

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// A standby that has missed the last report of a bridge becomes the leader after the bridge has ended. The bridge can no
// longer report, so the extensions in the catalog are kept.
func TestMissedReportOfBridgeThatEnded(t *testing.T) {
	since := time.Unix(1_700_000_000, 0).UTC()
	f := testFleet(t)
	written := encode(t, wire.Host{Bridge: "b", Version: "1.0.0", Since: since, Extensions: []string{"first", "last"}, State: heartbeat.Lost})
	f.catalog = &memCatalog{docs: map[string]Record{HostKey("b"): {Value: written, Revision: 1}}}
	full := message(wire.InventoryFull, 1, entry("first", "i", heartbeat.Ready))
	full.Host.Since = since
	f.send("host", "b", string(encode(t, full)))
	if h := hostDocument(t, f); !slices.Equal(h.Extensions, []string{"first"}) {
		t.Fatalf("the report of the bridge was not applied: %+v", h)
	}
	f.Elected(f.at.Add(time.Second))
	if h := hostDocument(t, f); h.State != heartbeat.Lost || !slices.Equal(h.Extensions, []string{"first", "last"}) {
		t.Errorf("the new leader writes %+v", h)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func hostDocument(t *testing.T, f *fixture) (h wire.Host) {
	t.Helper()
	data, err := f.Document(HostKey("b"), nil, f.at)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}
