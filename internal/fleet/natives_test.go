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

// TestUnannouncedInstance: an instance sends heartbeats under another name than it has announced. After the usual requests a
// diagnostic shows it, until the instance announces itself.
func TestUnannouncedInstance(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "i1", HandshakeHash: "h"})
	shown := 0
	for n := range 10 {
		f.at = f.at.Add(15 * time.Second)
		f.Control("heartbeat", "weather", []byte(`{"id":"weather","instance":"i2"}`), f.at)
		marks, _ := f.Take()
		if _, ok := marks[SpecKey("weather")]; ok {
			shown++
		}
		got := f.shownDiagnostics("weather")
		f.Take()
		if n < maxRequests && len(got) != 0 {
			t.Errorf("after %d heartbeats: %q", n+1, got)
		}
		if want := "warn instances_not_announced: not announced: i2; announced are: i1"; n >= maxRequests && (len(got) != 1 || got[0] != want) {
			t.Errorf("after %d heartbeats: %q, want %q", n+1, got, want)
		}
	}
	if shown != 1 {
		t.Errorf("the spec is written %d times", shown)
	}
	restored := newExtension("weather", f.at)
	if value, err := f.Document(SpecKey("weather"), nil, f.at); err != nil || !restored.restore(value, f.at) || restored.shown.implied {
		t.Errorf("%s (%v) is restored as %+v", value, err, restored.shown)
	}
	for range 6 {
		f.at = f.at.Add(15 * time.Second)
		for _, i := range []string{"i3", "i4", "i5"} {
			f.send("heartbeat", "weather", `{"id":"weather","instance":"`+i+`"}`)
		}
	}
	if got, want := f.shownDiagnostics("weather"), "warn instances_not_announced: not announced: i2, i3, i4, 1 more; announced are: i1"; len(got) != 1 || got[0] != want {
		t.Errorf("four instances: %q, want %q", got, want)
	}
	for _, i := range []string{"i2", "i3", "i4", "i5"} {
		f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: i, HandshakeHash: "h"})
	}
	if got := f.shownDiagnostics("weather"); len(got) != 0 {
		t.Errorf("after its announcement: %q", got)
	}
}
