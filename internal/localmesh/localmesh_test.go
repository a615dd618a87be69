package localmesh

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestRegistryConfig: the heartbeat settings of the host apply to the registry.
func TestRegistryConfig(t *testing.T) {
	own := config.Default()
	own.HeartbeatInterval, own.HeartbeatGraceFactor = 2*time.Second, 7.5
	for want, settings := range map[liveness.Config]config.Config{
		{Interval: 2 * time.Second, Grace: 7.5}:                              own,
		{Interval: heartbeat.DefaultInterval, Grace: heartbeat.DefaultGrace}: config.Default(),
	} {
		m := &programs{Config: Config{Bridge: bridge.Config{Prefix: "p", Settings: settings}}}
		if got := m.registryConfig(); got.Heartbeat != want || got.Prefix != "p" {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
