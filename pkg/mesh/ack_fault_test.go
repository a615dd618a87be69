package mesh_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestAcknowledgesNothingElse answers with a chunk that is to be acknowledged on a subject of the service's choosing. A
// caller acknowledges on the ack subject of what it called, or on an inbox, and nowhere else that it may publish.
func TestAcknowledgesNothingElse(t *testing.T) {
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
		ack string
		may bool
	}{
		{"$KV.ext_catalog.lease.registry", false},
		{"$JS.API.STREAM.DELETE.KV_ext_catalog", false},
		{"ext.registry.shutdown.victim", false},
		{"ext.victim.rpc", false},
		{"ext.victim.ack.token", false},
		{"ext.weather.cancel", false},
		{"ext.weather.ack", false},
		{"ext.weather.ack.token.rpc", false},
		{"ext.weather.member.ack.token", false},
		{"ext.registry.ack.token", false},
		{"ext.weather.ack.token", true},
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
			if tt.may && (err != nil || string(got) != `"whole"`) {
				t.Errorf("= %s, %v", got, err)
			}
			if !tt.may && (!errors.Is(err, rpc.CodeInternal) || rpc.AsError(err).Details().Ran != rpc.RanMaybe || !strings.Contains(err.Error(), ack)) {
				t.Errorf("= %s, %v, want an internal error that names %s", got, err, ack)
			}
			cc.Publish(ack, []byte("what comes behind it"))
			m, err := heard.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if acknowledged := len(m.Data) == 0; acknowledged != tt.may {
				t.Errorf("acknowledged: %t, want %t", acknowledged, tt.may)
			}
		})
	}
}

func TestMayAcknowledge(t *testing.T) {
	for _, tt := range []struct {
		subject, reply string
		want           bool
	}{
		{"ext.weather.rpc", "ext.weather.ack.t", true},
		{"ext.google.mail.rpc", "ext.google.mail.ack.t", true},
		{"ext.google.rpc", "ext.google.mail.ack.t", false},
		{"ext.weather.rpc", "ext.weather.ack.", false},
		{"ext.weather.rpc", "ext.weather.ack.*", false},
		{"ext.weather.rpc", "ext.weather.ack.>", false},
		{"ext.weather.rpc", "ext.weather.ack.a b", false},
		{"ext.weather.rpc", "", false},
		// A service may announce a subject prefix of its own.
		{"ext.registry.rpc", "ext.registry.ack.t", false},
		{"ext.registry.announce.rpc", "ext.registry.announce.ack.t", false},
		{"ext.control.rpc", "ext.control.ack.t", false},
		{"ext.log.rpc", "ext.log.ack.t", false},
		{"other.weather.rpc", "other.weather.ack.t", true},
	} {
		if wire.Prefix(wire.DefaultPrefix).MayAcknowledge(tt.subject, tt.reply) != tt.want {
			t.Errorf("MayAcknowledge(%q, %q) = %t", tt.subject, tt.reply, !tt.want)
		}
	}
}
