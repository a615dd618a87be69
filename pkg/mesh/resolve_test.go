package mesh

import (
	"errors"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestToollessExtension: a tool of an extension that has none at the moment is unavailable, not unknown.
func TestToollessExtension(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.gated", Spec{ID: "gated", Version: "1.0.0"})
	b.put("state.gated", StateDoc{State: heartbeat.Gated, Reason: "missing bins: ffmpeg"})
	b.put("spec.full", Spec{ID: "full", Version: "1.0.0", Tools: []Tool{{Name: "ext_full_x", Own: "x"}}})
	catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(b.nc, ClientOptions{Catalog: catalog})
	_, err = client.Call(t.Context(), "gated/encode", nil)
	if !errors.Is(err, rpc.CodeUnavailable) || !strings.Contains(err.Error(), "missing bins: ffmpeg") {
		t.Errorf("gated/encode: %v", err)
	}
	for _, unknown := range []string{"full/y", "nobody/x", "gated/"} {
		if _, err := client.Call(t.Context(), unknown, nil); errors.As(err, new(*NotFoundError)) == false {
			t.Errorf("%s: %v", unknown, err)
		}
	}
}
