package mesh_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestServeManyTools serves more tools than an announcement has room for: the announcement names none, and the handshake has
// them all.
func TestServeManyTools(t *testing.T) {
	t.Parallel()
	const tools = 1500
	box := &mesh.Toolbox{Version: "1.0.0"}
	for n := range tools {
		box.AddRaw(fmt.Sprintf("%s%05d", strings.Repeat("t", 250), n), "", nil, nil)
	}
	connect := startServer(t)
	nc := connect()
	announcements, err := nc.SubscribeSync("ext.registry.announce.greeter")
	if err != nil {
		t.Fatal(err)
	}
	nc.Flush()
	serveNative(t, connect(), box)
	m, err := announcements.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var a wire.Announce
	if err := json.Unmarshal(m.Data, &a); err != nil {
		t.Fatal(err)
	}
	if len(m.Data) > 1<<10 || a.HandshakeHash == "" {
		t.Errorf("announced: %d bytes, hash %q", len(m.Data), a.HandshakeHash)
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	var h wire.Handshake
	natstest.Eventually(t, "it answers", func() bool {
		result, err := client.CallExt(t.Context(), "greeter", "initialize", nil)
		if err == nil {
			h, err = wire.ParseHandshake(result)
		}
		return err == nil
	})
	if len(h.Tools) != tools {
		t.Errorf("the handshake has %d tools of %d", len(h.Tools), tools)
	}
}
