package fleet

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestSkillRemovedInTheMeantime: the last skill of a bridge was removed while no registry ran. The bridge's report and the
// catalog arrive in either order.
func TestSkillRemovedInTheMeantime(t *testing.T) {
	for name, steps := range map[string][]string{"report first": {"report", "catalog"}, "catalog first": {"catalog", "report"}} {
		f := testFleet(t)
		f.catalog = &memCatalog{docs: map[string]Record{
			HostKey("b"):        {Value: encode(t, wire.Host{Bridge: "b", Version: "1.0.0", State: heartbeat.Ready}), Revision: 1},
			SkillKey("a"):       {Value: encode(t, wire.Skill{Name: "A", Dir: "a", Hosts: []string{"b"}}), Revision: 2},
			SkillKey("another"): {Value: encode(t, wire.Skill{Name: "B", Dir: "another", Hosts: []string{"renamed"}}), Revision: 3},
		}}
		for _, step := range steps {
			if step == "catalog" {
				f.Elected(f.at)
			} else {
				f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1))))
			}
			f.settle()
		}
		for _, key := range []string{SkillKey("a"), SkillKey("another")} {
			if data, err := f.Document(key, nil, f.at); err != nil || data != nil {
				t.Errorf("%s: %s is still %s, %v", name, key, data, err)
			}
		}
		if f.bridges.byName["renamed"] != nil {
			t.Errorf("%s: a bridge without a host document exists", name)
		}
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

// TestRestoredAlertEnds: an alert that was read from the catalog ends with its instance, as others do.
func TestRestoredAlertEnds(t *testing.T) {
	at := time.Unix(1000, 0)
	f := testFleet(t)
	x := newExtension("x", at)
	spec := []byte(`{"id":"x","version":"1.0.0","subject":"ext.x.rpc","tools":[],"diagnostics":[
		{"level":"warn","code":"new_host","message":"instance i announced version 2.0.0 on evil, a new host of this extension; it has run on good"},
		{"level":"warn","code":"new_host","message":"instance ii announced version 2.0.0 on evil, a new host of this extension; it has run on good"}]}`)
	for range 2 {
		if !x.restore(spec, at) || len(x.alerts) != 2 {
			t.Fatalf("restored: %+v", x.alerts)
		}
	}
	if f.dropAlerts(x, "i", at); len(x.alerts) != 1 || !x.alerts[0].isAbout("ii") {
		t.Errorf("after the end of i: %+v", x.alerts)
	}
}

// TestSinceAfterAFastRestart: the restart was so fast that the catalog has never shown another state.
func TestSinceAfterAFastRestart(t *testing.T) {
	before := time.Unix(1000, 0).UTC()
	now := before.Add(time.Hour)
	health := liveness.Extension{State: heartbeat.Ready, Since: now, Instances: []liveness.Instance{{Instance: "i", State: heartbeat.Ready, Since: now, Restarts: 1}}}
	for restarts, want := range map[uint64]time.Time{0: now, 1: before} {
		old := &wire.StateDoc{State: heartbeat.Ready, Since: before, Instances: []wire.InstanceState{{Instance: "i", State: heartbeat.Ready, Since: before, Restarts: restarts}}}
		d := newExtension("x", before).state(health, old)
		if !d.Since.Equal(before) || !d.Instances[0].Since.Equal(want) {
			t.Errorf("after %d restarts in the catalog: ready since %v, the instance since %v", restarts, d.Since, d.Instances[0].Since)
		}
	}
}
