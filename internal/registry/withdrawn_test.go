package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestWithdrawnManifest: the manifest of a service that does not announce itself is removed while the service is up.
// The service stays, with its tools.
func TestWithdrawnManifest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "", "get") // serves ext.weather.rpc
		e.a.Instance = "n1"
		b.publish(prefix.Announce("weather"), wire.Announce{ID: "weather", Version: "1.0.0", Transport: "nats"})
		stop := e.sendHeartbeats()
		there := func() bool {
			s, _ := b.spec("weather")
			return len(s.Tools) == 1 && b.instances("weather") == "n1 ready"
		}
		b.await("it is there", there)
		for range 2 { // it is sent twice
			b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Reason: wire.ReasonRemoved})
			for range 20 {
				time.Sleep(100 * time.Millisecond) // fake time
				if !there() {
					t.Fatalf("it sends heartbeats, and the instances are %q", b.instances("weather"))
				}
			}
		}
		stop()
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Reason: wire.ReasonRemoved})
		b.await("it is forgotten", func() bool { return b.get(fleet.SpecKey("weather")) == nil && b.get(fleet.StateKey("weather")) == nil })
	})
}
