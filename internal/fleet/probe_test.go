package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
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
	f.send("host", "b", `{"bridge":"b","run":"r","seq":1,"kind":"full","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"},`+
		`"instances":[{"id":"weather","version":"1.0.0","instance":"n1","bridge":"b","state":"ready"}]}`)
	f.Elected(f.at)
	f.Tick(f.at)
	f.Tick(f.at)
	ping := effectOf[PingBridge](t, f)
	f.Pinged(ping, PingResult{Outcome: Answered}, f.at)
	f.Pinged(ping, PingResult{Outcome: NoResponders}, f.at)
	gone := effectOf[ConfirmGone](t, f)
	if i, _ := f.mon.Instance("weather", "n1"); i.State != heartbeat.Ready {
		t.Error("it is lost before that is confirmed")
	}
	f.send("host", "b", `{"bridge":"b","run":"r","seq":1,"kind":"heartbeat"}`) // was queued
	f.BridgeGone(gone, f.at)
	if i, _ := f.mon.Instance("weather", "n1"); i.State == heartbeat.Ready {
		t.Error("it is still ready")
	}
}

// TestForget: an operator can remove an instance of a bridge that is gone, but not of one that is there. If the bridge comes
// back, its full inventory is requested.
func TestForget(t *testing.T) {
	f := testFleet(t)
	f.send("host", "b", `{"bridge":"b","run":"r","seq":1,"kind":"full","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"},`+
		`"instances":[{"id":"weather","version":"1.0.0","instance":"n1","bridge":"b","state":"ready"}]}`)
	notice := `{"id":"weather","instance":"n1","reason":"removed"}`
	f.send("shutdown", "weather", notice)
	if f.refused["shutdown"] != 1 || f.exts["weather"] == nil {
		t.Error("an instance of a bridge that is there was removed")
	}
	b := f.bridges.byName["b"]
	b.leaving = true
	f.BridgeGone(ConfirmGone{"is gone", b}, f.at)
	f.send("shutdown", "weather", notice)
	if f.refused["shutdown"] != 1 || f.exts["weather"] != nil {
		t.Error("an instance of a bridge that is gone was not removed")
	}
	f.at = f.at.Add(time.Minute)
	f.send("host", "b", `{"bridge":"b","run":"r","seq":1,"kind":"heartbeat"}`)
	if e := effectOf[RequestInventory](t, f); e.Bridge != "b" {
		t.Errorf("%+v", e)
	}
}

// TestInconclusiveProbe: what the catalog shows while a probe is not answered ends with the probe, also if its end shows nothing
// because the registry itself was cut off.
func TestInconclusiveProbe(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1", Features: []string{wire.FeatureInstance}})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	f.Elected(f.at)
	f.Verified(f.at, false, f.at)
	f.send("suspect", "weather", `{"id":"weather","instance":"n1"}`)
	ping := effectOf[Ping](t, f)
	f.Unanswered(ping, f.at)
	if i, _ := f.mon.Instance("weather", "n1"); i.Note != NotAnswering {
		t.Fatalf("it is shown as %+v", i)
	}
	f.Probed(ping, "", errors.New("not sent"), f.at)
	if i, _ := f.mon.Instance("weather", "n1"); i.Note != "" || i.State != heartbeat.Ready {
		t.Errorf("it is shown as %+v", i)
	}
}

// TestPendingHandshakes: an extension that announces one version after the other, and answers no handshake, has a limited share
// of the queue that all extensions have.
func TestPendingHandshakes(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	for i := range 3 * maxPendingOf {
		f.announce(wire.Announce{ID: "weather", Version: "1.0.0", HandshakeHash: fmt.Sprint(i)})
	}
	started := 0
	f.settle()
	for _, e := range f.pending {
		if _, ok := e.(Handshake); ok {
			started++
		}
	}
	if started != maxPendingOf {
		t.Errorf("%d handshakes are pending, want %d", started, maxPendingOf)
	}
}

// TestHandshakeOfAnotherInstance: instances of two versions share a subject, so that the old one may answer the handshake of the
// new one. Its tools are not taken for those of the new version.
func TestHandshakeOfAnotherInstance(t *testing.T) {
	f := testFleet(t)
	f.limits.Spec = 1 << 20
	f.Elected(f.at)
	answer := func(version string) Offer {
		return ParseOffer(json.RawMessage(`{"server_version":"`+version+`","tools":[{"name":"of_`+version[:1]+`"}]}`), nil, 1<<20)
	}
	for _, version := range []string{"1.0.0", "2.0.0"} {
		f.announce(wire.Announce{ID: "disk", Version: version, Instance: "n" + version[:1]})
		f.send("heartbeat", "disk", `{"id":"disk","instance":"n`+version[:1]+`","version":"`+version+`"}`)
		f.HandshakeDone(effectOf[Handshake](t, f), answer("1.0.0"), f.at)
		f.settle()
	}
	x := f.exts["disk"]
	if s := x.handshakes[x.announcements["n2"].handshakeKey()]; s == nil || s.done || s.err == "" {
		t.Errorf("after the answer of version 1: %+v", s)
	}
	f.send("heartbeat", "disk", `{"id":"disk","instance":"n2","version":"2.0.0"}`)
	f.HandshakeDone(effectOf[Handshake](t, f), answer("2.0.0"), f.at)
	f.settle()
	if s := x.handshakes[x.announcements["n2"].handshakeKey()]; !s.done || s.err != "" || s.tools[0].Own != "of_2" {
		t.Errorf("after its own answer: %+v", s)
	}
}

// TestAnnouncementSoonAfterHandshake: the tools of a service that announces itself again soon after its handshake are requested
// again a little later.
func TestAnnouncementSoonAfterHandshake(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	requested := func() (n int) {
		for _, e := range f.pending {
			if _, ok := e.(Handshake); ok {
				n++
			}
		}
		return n
	}
	up := func() {
		f.announce(wire.Announce{ID: "disk", Version: "1.0.0", Instance: "n"})
		f.send("heartbeat", "disk", `{"id":"disk","instance":"n"}`)
	}
	up()
	f.HandshakeDone(effectOf[Handshake](t, f), ParseOffer(json.RawMessage(`{"tools":[]}`), nil, 1<<20), f.at)
	f.at = f.at.Add(2 * time.Second)
	up()
	if n := requested(); n != 1 {
		t.Errorf("%d handshakes at once", n)
	}
	for range 2 { // heartbeats
		f.at = f.at.Add(15 * time.Second)
		f.send("heartbeat", "disk", `{"id":"disk","instance":"n"}`)
	}
	if n := requested(); n != 2 {
		t.Errorf("%d handshakes after heartbeats, want 2", n)
	}
}

// TestMembersOfService: the directory of a service on NATS has MCP servers, which a bridge runs. The service announces itself.
func TestMembersOfService(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "x", Version: "1.0.0", Instance: "own"})
	f.send("heartbeat", "x", `{"id":"x","instance":"own"}`)
	member := entry("x.files", "m", heartbeat.Ready)
	member.Parent = "x"
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1, member))))
	if f.exts["x.files"] != nil {
		t.Error("a member whose parent the bridge does not list is admitted")
	}
	service := wire.InventoryInstance{Announce: wire.Announce{ID: "x", Version: "1.0.0", Transport: "nats"}}
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 2, service, member))))
	if x := f.exts["x.files"]; x == nil || x.announcements["m"] == nil {
		t.Errorf("the member is not admitted; refused: %v", f.refused)
	}
}

// TestForgetAtAStandby: an operator removes an instance of a bridge that is gone. A standby does not ping bridges.
func TestForgetAtAStandby(t *testing.T) {
	for state, forgotten := range map[heartbeat.State]bool{heartbeat.Lost: true, heartbeat.Ready: false} {
		f := testFleet(t)
		f.leads = false
		f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1, entry("x", "i", heartbeat.Ready)))))
		f.catalog = &memCatalog{docs: map[string]Record{HostKey("b"): {Value: encode(t, wire.Host{Bridge: "b", State: state}), Revision: 1}}}
		f.send("shutdown", "x", string(encode(t, wire.ShutdownNotice{ID: "x", Instance: "i", Reason: wire.ReasonRemoved})))
		if gone := f.exts["x"] == nil; gone != forgotten {
			t.Errorf("with a bridge that is %s, the extension is forgotten: %v", state, gone)
		}
	}
}

// TestBridgeAnswersAgain: the instances of a bridge that was lost are lost, too, until its inventory arrives.
func TestBridgeAnswersAgain(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1, entry("x", "i", heartbeat.Ready)))))
	b := f.bridges.byName["b"]
	f.bridges.pinged(b, PingResult{Outcome: Answered}, f.at)
	b.leaving = true
	f.BridgeGone(ConfirmGone{"is gone", b}, f.at)
	f.settle()
	f.pending, f.at = nil, f.at.Add(time.Minute)
	f.bridges.pinged(b, PingResult{Outcome: Answered}, f.at)
	if r := effectOf[RequestInventory](t, f); r.Bridge != "b" {
		t.Errorf("requested: %+v", r)
	}
}

// TestInheritedProbe: a new leader marks an instance lost that has no responders, and not one that only takes long: it may be busy
// with a call. A caller's report counts as before, also while the probe is running.
func TestInheritedProbe(t *testing.T) {
	for _, tt := range []struct {
		reason   string
		reported bool
		want     heartbeat.State
	}{
		{NotAnswering, false, heartbeat.Ready},
		{NotAnswering, true, heartbeat.Lost},
		{"no responders", false, heartbeat.Lost},
	} {
		f := testFleet(t)
		f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1", Features: []string{wire.FeatureInstance}})
		f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
		f.Elected(f.at)
		f.Verified(f.at, false, f.at)
		f.settle()
		ping := effectOf[Ping](t, f)
		f.Unanswered(ping, f.at)
		if i, _ := f.mon.Instance("weather", "n1"); i.Note != "" {
			t.Errorf("while it is probed it is shown as %+v", i)
		}
		if tt.reported {
			f.send("suspect", "weather", `{"id":"weather","instance":"n1"}`)
		}
		f.Probed(ping, tt.reason, nil, f.at)
		if i, _ := f.mon.Instance("weather", "n1"); i.State != tt.want {
			t.Errorf("%+v: it is shown as %+v", tt, i)
		}
	}
}

// TestReturnAfterOutage: after the NATS server was down, the leader may connect again before the bridges and services do.
func TestReturnAfterOutage(t *testing.T) {
	f := testFleet(t)
	f.send("host", "b", `{"bridge":"b","run":"r","seq":1,"kind":"full","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"},`+
		`"instances":[{"id":"weather","version":"1.0.0","instance":"n1","bridge":"b","state":"ready"}]}`)
	f.Elected(f.at)
	f.Pinged(PingBridge{"b", f.bridges.byName["b"]}, PingResult{Outcome: Answered}, f.at)
	f.settle()
	f.Deposed(f.at)
	f.RequestAll(true, f.at)
	f.Elected(f.at)
	f.pending = nil
	f.settle()
	for range 2 {
		f.Pinged(PingBridge{"b", f.bridges.byName["b"]}, PingResult{Outcome: NoResponders}, f.at)
		for _, e := range f.pending {
			switch e.(type) {
			case Ping, ConfirmGone:
				t.Errorf("at once: %T", e)
			}
		}
	}
	f.at = f.at.Add(returnTime)
	f.Pinged(PingBridge{"b", f.bridges.byName["b"]}, PingResult{Outcome: NoResponders}, f.at)
	effectOf[ConfirmGone](t, f)
}

// TestSharedSubjectProbe: an answer of the next instance on the same subject is no sign of the one before it.
func TestSharedSubjectProbe(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1"})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	f.Elected(f.at)
	f.Verified(f.at, false, f.at)
	f.settle()
	ping := effectOf[Ping](t, f)
	f.Probed(ping, "no responders", nil, f.at)
	f.at = f.at.Add(holdRetry + time.Second)
	for range 2 {
		f.Tick(f.at)
	}
	f.Probed(effectOf[Ping](t, f), "", nil, f.at)
	if i, _ := f.mon.Instance("weather", "n1"); i.State != heartbeat.Lost {
		t.Errorf("after an answer without a heartbeat it is %s", i.State)
	}
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	f.Probed(effectOf[Ping](t, f), "", nil, f.at)
	if i, _ := f.mon.Instance("weather", "n1"); i.State != heartbeat.Ready {
		t.Errorf("after a heartbeat and an answer it is %s", i.State)
	}
}

// TestOneSubject: a bridge cannot take the calls of an extension to a subject of its own while another instance is up.
func TestOneSubject(t *testing.T) {
	f := testFleet(t)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1"})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
	list := func(run string) {
		f.send("host", "b", `{"bridge":"b","run":"`+run+`","seq":1,"kind":"full","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"},`+
			`"instances":[{"id":"weather","version":"9.0.0","instance":"-","bridge":"b","subject_prefix":"ext.mine","state":"ready"}]}`)
	}
	list("r1")
	if f.refused["announce"] != 1 || f.exts["weather"].announcements["-"] != nil {
		t.Error("another subject is accepted")
	}
	f.send("shutdown", "weather", `{"id":"weather","instance":"n1"}`)
	list("r2")
	if f.exts["weather"].announcements["-"] == nil {
		t.Error("after the stop of the first one, another subject is refused")
	}
}
