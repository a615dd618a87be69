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

// TestServeAnnouncesWhatIsTaken serves more tools than an announcement may name (docs/protocol.md, "Limits and times"):
// the names are left out of it, and the handshake has them all.
func TestServeAnnouncesWhatIsTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		tools     int
		prefix    string // of their names
		announced int
	}{
		{"a few", 3, "t", 3},
		{"as many as may be", 1000, strings.Repeat("t", 250), 1000},
		{"one more", 1001, "t", 0},
		{"many", 1500, "t", 0},
		{"too long together", 1000, strings.Repeat("&", 250), 0}, // six bytes each in JSON
	} {
		t.Run(tt.name, func(t *testing.T) {
			box := &mesh.Toolbox{Version: "1.0.0"}
			for n := range tt.tools {
				box.AddRaw(fmt.Sprintf("%s%05d", tt.prefix, n), "", nil, nil)
			}
			connect := startServer(t)
			nc := connect()
			heard, err := nc.SubscribeSync("ext.registry.announce.greeter")
			if err != nil {
				t.Fatal(err)
			}
			nc.Flush()
			serveNative(t, connect(), box)
			m, err := heard.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			var a wire.Announce
			if err := json.Unmarshal(m.Data, &a); err != nil {
				t.Fatal(err)
			}
			if len(m.Data) > 256<<10 || len(a.Capabilities.Tools) != tt.announced || a.HandshakeHash == "" {
				t.Errorf("announced: %d bytes, %d tools, hash %q", len(m.Data), len(a.Capabilities.Tools), a.HandshakeHash)
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
			if len(h.Tools) != tt.tools {
				t.Errorf("the handshake has %d tools of %d", len(h.Tools), tt.tools)
			}
		})
	}
}
