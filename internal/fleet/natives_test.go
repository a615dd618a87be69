package fleet

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestRefusedServiceIsNotShown: a service announces a subject that belongs to another extension. Its heartbeats do not show it as
// ready on a subject that it does not serve. When the subject is free, it is shown there.
func TestRefusedServiceIsNotShown(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	f.announce(wire.Announce{ID: "a", Version: "1.0.0", Instance: "n1", HandshakeHash: "h"})
	f.announce(wire.Announce{ID: "a.b", Version: "1.0.0", Instance: "n1", Parent: "a", HandshakeHash: "h"})
	f.send("heartbeat", "a.b", `{"id":"a.b","instance":"n1"}`)
	for range 4 {
		f.at = f.at.Add(15 * time.Second)
		f.announce(wire.Announce{ID: "b", Version: "1.0.0", Instance: "n2", SubjectPrefix: "ext.a"})
		f.at = f.at.Add(2 * time.Second) // long enough for its heartbeats to count alone
		f.send("heartbeat", "b", `{"id":"b","version":"1.0.0","instance":"n2"}`)
		if x := f.exts["b"]; x != nil {
			t.Fatalf("it is shown on %s", x.announcements["n2"].subject())
		}
	}
	if f.refused["announce"] < 4 {
		t.Errorf("refused: %v", f.refused)
	}
	f.send("shutdown", "a.b", string(encode(t, wire.ShutdownNotice{ID: "a.b", Instance: "n1", Reason: wire.ReasonRemoved})))
	f.send("heartbeat", "b", `{"id":"b","version":"1.0.0","instance":"n2"}`)
	i, _ := f.mon.Instance("b", "n2")
	if x := f.exts["b"]; x == nil || i.State != heartbeat.Ready || x.announcements["n2"].subject() != "ext.a.b.rpc" {
		t.Errorf("after the subject became free: %+v, %+v", i, x)
	}
}
