package mesh_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestAcknowledgesToInboxes answers with a chunk that is to be acknowledged on a subject of the service's choosing. NATS
// lets a caller publish wherever it is sent a reply subject: the registry's lease, and the catalog's end, are not among
// what it acknowledges.
func TestAcknowledgesToInboxes(t *testing.T) {
	connect := startServer(t)
	svc, cc := connect(), connect()
	const answer = `{"jsonrpc":"2.0","id":1,"result":"whole"}`
	var ack string
	foreign(t, svc, func(m *nats.Msg) {
		chunk := nats.NewMsg(m.Reply)
		chunk.Header.Set("Ext-Frame", "chunk")
		chunk.Header.Set("Ext-Seq", "1")
		chunk.Reply, chunk.Data = ack, []byte(answer)
		svc.PublishMsg(chunk)
		end := nats.NewMsg(m.Reply)
		end.Header.Set("Ext-Frame", "end")
		end.Data = []byte(`{"length":41}`)
		svc.PublishMsg(end)
	})
	for _, tt := range []struct {
		ack   string
		inbox bool
	}{
		{"$KV.ext_catalog.lease.registry", false},
		{"$JS.API.STREAM.DELETE.KV_ext_catalog", false},
		{"ext.registry.shutdown.victim", false},
		{"ext.victim.rpc", false},
		{"_INBOX.abc.1", true},
		{"_INBOX_agent.abc", true},
		{"ext2.inbox", true},
		{"ext", true},
	} {
		t.Run(tt.ack, func(t *testing.T) {
			ack = tt.ack
			heard, err := svc.SubscribeSync(ack)
			if err != nil {
				t.Fatal(err)
			}
			defer heard.Unsubscribe()
			svc.Flush()
			got, err := mesh.NewClient(cc, mesh.ClientOptions{}).CallExt(t.Context(), "weather", "tools/x", nil)
			if tt.inbox && (err != nil || string(got) != `"whole"`) {
				t.Errorf("= %s, %v", got, err)
			}
			if !tt.inbox && (!errors.Is(err, rpc.CodeInternal) || rpc.AsError(err).Details().Ran != rpc.RanMaybe || !strings.Contains(err.Error(), ack)) {
				t.Errorf("= %s, %v, want an internal error that names %s", got, err, ack)
			}
			cc.Publish(ack, []byte("what comes behind it"))
			m, err := heard.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if acknowledged := len(m.Data) == 0; acknowledged != tt.inbox {
				t.Errorf("acknowledged: %t, want %t", acknowledged, tt.inbox)
			}
		})
	}
}
