package fleet

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// A standby that has missed the last report of a bridge becomes the leader after the bridge has ended. The bridge can no
// longer report, so the extensions in the catalog are kept.
func TestMissedReportOfBridgeThatEnded(t *testing.T) {
	since := time.Unix(1_700_000_000, 0).UTC()
	f := testFleet(t)
	written := encode(t, wire.Host{Bridge: "b", Version: "1.0.0", Since: since, Extensions: []string{"first", "last"}, State: heartbeat.Lost})
	f.catalog = &memCatalog{docs: map[string]Record{HostKey("b"): {Value: written, Revision: 1}}}
	full := message(wire.InventoryFull, 1, entry("first", "i", heartbeat.Ready))
	full.Host.Since = since
	f.send("host", "b", string(encode(t, full)))
	if h := hostDocument(t, f); !slices.Equal(h.Extensions, []string{"first"}) {
		t.Fatalf("the report of the bridge was not applied: %+v", h)
	}
	f.Elected(f.at.Add(time.Second))
	if h := hostDocument(t, f); h.State != heartbeat.Lost || !slices.Equal(h.Extensions, []string{"first", "last"}) {
		t.Errorf("the new leader writes %+v", h)
	}
}

// TestStoppedBridge: a bridge that stopped its instances before it ended is not lost by accident, also for the next leader, and
// a new registry does not keep its document longer.
func TestStoppedBridge(t *testing.T) {
	f := testFleet(t)
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1, entry("x", "i", heartbeat.Shutdown)))))
	f.bridges.byName["b"].leaving = true
	f.BridgeGone(ConfirmGone{"is gone", f.bridges.byName["b"]}, f.at)
	h := hostDocument(t, f)
	if h.State != heartbeat.Lost || h.Reason != wire.ReasonStopped || f.Summary().Hosts[heartbeat.Shutdown] != 1 {
		t.Errorf("%+v, %v", h, f.Summary().Hosts)
	}
	next := testFleet(t)
	h.StateSince = next.at.Add(-time.Hour)
	next.catalog = &memCatalog{docs: map[string]Record{HostKey("b"): {Value: encode(t, h), Revision: 1}}}
	next.Elected(next.at)
	if next.Summary().Hosts[heartbeat.Shutdown] != 1 || !next.bridges.byName["b"].seen.Equal(h.StateSince) {
		t.Errorf("the next leader: %v, %+v", next.Summary().Hosts, next.bridges.byName["b"])
	}
}

// TestStoppedBridgeWithoutInstances: a bridge that has only skills, for example, has lost nothing when it is gone.
func TestStoppedBridgeWithoutInstances(t *testing.T) {
	f := testFleet(t)
	f.send("host", "b", string(encode(t, message(wire.InventoryFull, 1))))
	f.bridges.byName["b"].leaving = true
	f.BridgeGone(ConfirmGone{"is gone", f.bridges.byName["b"]}, f.at)
	if h := hostDocument(t, f); h.Reason != wire.ReasonStopped {
		t.Errorf("%+v", h)
	}
}

// TestRestoredHooks: an extension with hooks and without tools keeps them under a new leader.
func TestRestoredHooks(t *testing.T) {
	x := newExtension("x", time.Unix(1000, 0))
	if !x.restore([]byte(`{"id":"x","version":"1.0.0","subject":"ext.x.rpc","hooks":["before_message"]}`), time.Unix(1001, 0)) || x.tools == nil {
		t.Errorf("restored: %+v", x.tools)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func hostDocument(t *testing.T, f *fixture) (h wire.Host) {
	t.Helper()
	data, err := f.Document(HostKey("b"), nil, f.at)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestRestoredDiagnostics: a new leader keeps what the handshake has found, since it does not repeat the handshake.
func TestRestoredDiagnostics(t *testing.T) {
	x := newExtension("x", time.Unix(1000, 0))
	if !x.restore([]byte(`{"id":"x","version":"1.0.0","subject":"ext.x.rpc","handshake_hash":"h","tools":[{"tool":"a","description":"","input_schema":{}}],
		"diagnostics":[{"level":"warn","code":"undeclared","message":"m"},{"level":"warn","code":"bad_tool","message":"m"},{"level":"warn","code":"name_clash","message":"m"}]}`), time.Unix(1001, 0)) {
		t.Fatal("the spec is refused")
	}
	var codes []string
	for _, d := range x.tools.notes {
		codes = append(codes, d.Code)
	}
	if !slices.Equal(codes, []string{"undeclared", "bad_tool"}) {
		t.Errorf("restored: %v", codes)
	}
}

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

// TestRestoredHandshake: a new leader takes over the tools of the catalog. If they were cut, it requests them again, because there
// may be room for them now.
func TestRestoredHandshake(t *testing.T) {
	for code, again := range map[string]bool{"": false, codeSchemaDropped: true} {
		f := testFleet(t)
		s := wire.Spec{ID: "weather", Version: "1.0.0", Subject: "x.weather.rpc", Dialect: "ext", HandshakeHash: "h", Tools: []wire.Tool{{Own: "now"}}}
		if code != "" {
			s.Diagnostics = []wire.Diagnostic{{Code: code}}
		}
		f.catalog = &memCatalog{docs: map[string]Record{SpecKey("weather"): {Value: encode(t, s), Revision: 1}}}
		f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n1", HandshakeHash: "h"})
		f.send("heartbeat", "weather", `{"id":"weather","instance":"n1"}`)
		f.Elected(f.at)
		f.settle()
		asked := slices.ContainsFunc(f.pending, func(e Effect) bool { _, ok := e.(Handshake); return ok })
		if asked != again || len(f.exts["weather"].tools.tools) != 1 {
			t.Errorf("with the diagnostic %q: a handshake %v, tools %+v", code, asked, f.exts["weather"].tools)
		}
	}
}

// TestRestoredUnannounced: a service that only sends heartbeats is handled by a new registry as it was before.
func TestRestoredUnannounced(t *testing.T) {
	f := testFleet(t)
	s := wire.Spec{ID: "weather", Version: "1.0.0", Subject: "x.weather.rpc", Dialect: "ext", Tools: []wire.Tool{{Own: "now"}},
		Diagnostics: []wire.Diagnostic{{Level: "info", Code: codeNotAnnounced}}}
	f.catalog = &memCatalog{docs: map[string]Record{SpecKey("weather"): {Value: encode(t, s), Revision: 1}}}
	f.Elected(f.at)
	f.settle()
	for range 3 {
		f.at = f.at.Add(2 * time.Second)
		f.send("heartbeat", "weather", `{"id":"weather","version":"2.0.0"}`)
	}
	if a := f.exts["weather"].announcements[""]; a == nil || !a.implied || a.Version != "2.0.0" {
		t.Errorf("its announcement is %+v", a)
	}
	effectOf[Handshake](t, f)
}
