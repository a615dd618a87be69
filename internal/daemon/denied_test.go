package daemon

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/natstest"
)

// TestDeniedSubscriptionIsUnready denies a subscription that the program needs. Denied subscriptions of an extension
// do not make the program unready.
func TestDeniedSubscriptionIsUnready(t *testing.T) {
	emptyHome(t)
	srv := natstest.Start(t, &server.Options{Port: -1, Users: []*server.User{{
		Username: "u", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"none"}}},
	}}})
	url := strings.Replace(srv.ClientURL(), "nats://", "nats://u:p@", 1)
	code := runProgram(t.Context(), io.Discard, []string{"--server", url}, func(_ context.Context, p Process) error {
		for _, subject := range []string{"ext.x.rpc", "ext.x.rpc.INSTANCE", "ext.x.y.cancel", "ext.x.ack.*", "$SRV.PING", "ext.registry.catalog.state.x"} {
			if _, err := p.NC.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
		}
		p.Health.Ready(func() error { return nil })
		if _, err := p.NC.SubscribeSync("ext.registry.rpc"); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "the program is unready", func() bool { return p.Health.readiness() != nil })
		if err := p.Health.readiness(); !strings.Contains(err.Error(), "subscription to ext.registry.rpc;") {
			t.Error("unready:", err)
		}
		if err := p.NC.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "the subscription is denied again", func() bool {
			d := p.Health.deniedSub.Load()
			return d != nil && d.reconnects == 1 && p.Health.readiness() != nil
		})
		return nil
	})
	if code != 0 {
		t.Errorf("exit %d", code)
	}
}
