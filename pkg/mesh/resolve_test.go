package mesh

import (
	"errors"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestToollessExtension: a tool of an extension that has none at the moment is unavailable, not unknown.
func TestToollessExtension(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.gated", wire.Spec{ID: "gated", Version: "1.0.0"})
	b.put("state.gated", wire.StateDoc{State: heartbeat.Gated, Reason: "missing bins: ffmpeg"})
	b.put("spec.box", wire.Spec{ID: "box", Version: "1.0.0", HandshakeHash: "h"}) // a container: its handshake has no tools
	b.put("state.box", wire.StateDoc{State: heartbeat.Ready})
	b.put("spec.gated_more", wire.Spec{ID: "gated_more", Version: "1.0.0"})
	b.put("state.gated_more", wire.StateDoc{State: heartbeat.Gated, Reason: "missing env: KEY"})
	b.put("spec.full", wire.Spec{ID: "full", Version: "1.0.0", Tools: []wire.Tool{{Name: "ext_full_x", Own: "x"}}})
	catalog, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(b.nc, ClientOptions{Catalog: catalog})
	for name, want := range map[string]string{
		"gated/encode":          "missing bins: ffmpeg",
		"ext_gated_encode":      "missing bins: ffmpeg",
		"ext_gated_more_encode": "missing env: KEY", // not gated's more_encode
	} {
		if _, err := client.Call(t.Context(), name, nil); !errors.Is(err, rpc.CodeUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, unknown := range []string{"full/y", "nobody/x", "gated/", "ext_full_y", "ext_gated_", "ext_gated", "gated_encode", "ext_box_mail_sent", "box/x"} {
		if _, err := client.Call(t.Context(), unknown, nil); errors.As(err, new(*NotFoundError)) == false {
			t.Errorf("%s: %v", unknown, err)
		}
	}
}
