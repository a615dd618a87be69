package fleet

import (
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestLateProbe: a probe that ends after its registry was deposed and leads again must not end a newer probe of the
// same instance, which would then stay lost.
func TestLateProbe(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1"})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	key := instanceKey{"weather", "n1"}
	late, now := &probe{id: key.id, instance: key.instance, running: true}, &probe{id: key.id, instance: key.instance, held: true}
	f.probes.byInstance[key] = now
	f.Probed(Ping{own: true, probe: late}, "", nil, f.at)
	if f.probes.byInstance[key] != now {
		t.Error("the instance is not probed any more")
	}
}

// TestGoneIsConfirmed: a bridge that does not answer is lost only after the messages have been processed that were sent
// before, and not if one of its messages is among them that shows that it runs.
func TestGoneIsConfirmed(t *testing.T) {
	f := testFleet(t)
	f.send("host", "b", `{"bridge":"b","version":"1.0.0","since":"2026-11-21T11:58:00Z","extensions":["weather"]}`)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1", Bridge: "b"})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	f.Elected(f.at)
	f.Tick(f.at)
	f.Tick(f.at)
	ping := effectOf[PingBridge](t, f)
	f.Pinged(ping, PingResult{Outcome: Answered}, f.at)
	f.Pinged(ping, PingResult{Outcome: NoResponders}, f.at)
	gone := effectOf[ConfirmGone](t, f)
	if !f.ready("weather", "n1") {
		t.Error("it is lost before that is confirmed")
	}
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`) // was queued
	f.BridgeGone(gone, f.at)
	if f.ready("weather", "n1") {
		t.Error("it is still ready")
	}
}
