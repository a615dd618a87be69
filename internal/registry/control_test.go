package registry

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestForgedControlMessages: a caller can make the NATS server or a service publish a reply on a subject that the
// caller may not publish on. None of these replies changes the catalog.
func TestForgedControlMessages(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	one := b.bridge("one", "r1")
	one.addSkill(wire.SkillEntry{Dir: "cook", Name: "Cook", Body: "fry"})
	bridged := b.ext("bridged", "1.0.0", "n", "get").on(one)
	bridged.up()
	b.ext("weather", "1.0.0", "n", "get").up()
	unnamed := b.ext("plain", "1.0.0", "", "get")
	unnamed.up()
	specs := []string{fleet.SpecKey("weather"), fleet.SpecKey("plain"), fleet.SpecKey("bridged")}
	documents := append([]string{fleet.SkillKey("cook"), fleet.HostKey("one"), fleet.StateKey("weather"), fleet.StateKey("plain"), fleet.StateKey("bridged")}, specs...)
	b.await("everything is in the catalog", func() bool {
		for _, id := range []string{"weather", "plain", "bridged"} {
			if s, _ := b.spec(id); len(s.Tools) != 1 || b.state(id).State != heartbeat.Ready {
				return false
			}
		}
		return b.get(fleet.SkillKey("cook")) != nil && one.is(heartbeat.Ready)() && slices.Equal(one.doc().Extensions, []string{"bridged"})
	})
	catalog := func() (all [][]byte) {
		for _, key := range documents {
			all = append(all, b.get(key))
		}
		return all
	}
	before := catalog()

	text := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	announcement := wire.Announce{ID: "weather", Version: "999.0.0", Instance: "evil", Features: []string{wire.FeatureInstance}}
	otherHost := wire.Inventory{Bridge: "one", Run: "r2", Seq: 1, Kind: wire.InventoryFull, Host: &wire.InventoryHost{Version: "6.6.6"}}
	ofAnother := otherHost
	ofAnother.Bridge = "two"
	takenOver := bridged.a
	takenOver.Version = "6.6.6"
	for _, tc := range []struct {
		name, what, subject, body string
		headers                   bool
	}{
		{"a direct get's answer as an announcement", "announce", prefix.Announce("weather"), text(announcement), true},
		{"a direct get's answer as a heartbeat", "beat", prefix.Heartbeat("plain"), `{"id":"plain","state":"failed"}`, true},
		{"a direct get's answer as a shutdown notice", "shutdown", prefix.Shutdown("plain"), `{"id":"plain"}`, true},
		{"a direct get's answer as a removal", "shutdown", prefix.Shutdown("plain"), `{"id":"plain","reason":"removed"}`, true},
		{"a direct get's answer as an inventory", "inventory", prefix.HostReport("one"), text(otherHost), true},
		{"a direct get's answer as a suspect", "suspect", prefix.Suspect("weather"), ``, true},
		{"a service's answer as a heartbeat", "beat", prefix.Heartbeat("plain"), `{"jsonrpc":"2.0","id":"plain","state":"failed"}`, false},
		{"a service's answer as a shutdown notice", "shutdown", prefix.Shutdown("plain"), `{"jsonrpc":"2.0","id":"plain","result":{}}`, false},
		{"a service's answer as an announcement", "announce", prefix.Announce("plain"), `{"version":"9.0.0","id":"plain","jsonrpc":"2.0"}`, false},
		{"a service's answer as an inventory", "inventory", prefix.HostReport("one"), strings.Replace(text(otherHost), "{", `{"jsonrpc":"2.0",`, 1), false},
		{"any object as an inventory", "inventory", prefix.HostReport("one"), `{"id":"weather","version":"1.0.0"}`, false},
		{"another bridge's inventory", "inventory", prefix.HostReport("one"), text(ofAnother), false},
		{"an announcement of a bridge's instance", "announce", prefix.Announce("bridged"), text(takenOver), false},
		{"a heartbeat of a bridge's instance", "beat", prefix.Heartbeat("bridged"), `{"id":"bridged","instance":"n","state":"failed"}`, false},
		{"a shutdown notice of a bridge's instance", "shutdown", prefix.Shutdown("bridged"), `{"id":"bridged","instance":"n"}`, false},
		{"a heartbeat without the instance", "beat", prefix.Heartbeat("weather"), `{"id":"weather"}`, false},
		{"a shutdown notice without the instance", "shutdown", prefix.Shutdown("weather"), `{"id":"weather"}`, false},
		{"a removal without the instance", "shutdown", prefix.Shutdown("weather"), `{"id":"weather","reason":"removed"}`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused := b.status(r).Refused[tc.what]
			m := &nats.Msg{Subject: tc.subject, Data: []byte(tc.body)}
			if tc.headers {
				m.Header = nats.Header{"Nats-Stream": {"KV_ext_catalog"}}
			}
			if err := b.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			b.await("it is refused", func() bool { return b.status(r).Refused[tc.what] == refused+1 })
		})
	}
	// After a message of its own the registry would write whatever the forged ones have changed.
	b.ext("last", "1.0.0", "n", "get").up()
	b.await("the last extension is in the catalog", func() bool { s, _ := b.spec("last"); return len(s.Tools) == 1 })
	diagnostics := regexp.MustCompile(`,"diagnostics":\[\{"level":"error","code":"refused","message":"its heartbeats are refused: [^"]*"\}\]`)
	b.await("the reason why a heartbeat was refused is in the catalog", func() bool { return diagnostics.Match(b.get(fleet.SpecKey("weather"))) })
	for n, now := range catalog() {
		if string(diagnostics.ReplaceAll(now, nil)) != string(before[n]) {
			t.Errorf("%s changed:\n%s\n%s", documents[n], before[n], now)
		}
	}
}

// TestHeartbeatWithoutInstanceAfterRestart: a service that announced without an instance stays in the catalog when
// the registry restarts and has received only heartbeats. For a service with named instances such a heartbeat is
// refused.
func TestHeartbeatWithoutInstanceAfterRestart(t *testing.T) {
	b := newBed(t)
	r, stop := b.registry(Config{})
	b.leading(r)
	plain, named := b.ext("plain", "1.0.0", "", "get"), b.ext("weather", "1.0.0", "n", "get")
	plain.up()
	named.up()
	b.await("both are ready", func() bool { return plain.is("plain", heartbeat.Ready)() && plain.is("weather", heartbeat.Ready)() })
	stop()
	r, _ = b.registry(Config{})
	b.leading(r)
	plain.heartbeat(heartbeat.Failed)
	b.await("its heartbeat counts", plain.is("plain", heartbeat.Failed))
	b.publish(prefix.Heartbeat("weather"), `{"id":"weather","state":"failed"}`)
	b.await("the other one does not", func() bool { return b.status(r).Refused["beat"] == 1 })
	if d := b.state("weather"); len(d.Instances) != 1 || d.Instances[0].Instance != "n" {
		t.Errorf("state: %+v", d)
	}
}
