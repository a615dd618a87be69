package registry

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most of their time the tests wait; the command line overrides it
	leaks.Main(m)
}

func TestShowsLostAndBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		e := b.ext("weather", "1.0.0", "n1", "get", "set")
		b.leading(r)
		start := time.Now()
		e.up()
		b.await("the spec has tools", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 2 })
		t.Logf("spec after %v", time.Since(start))
		s, _ := b.spec("weather")
		if got := s.Tools[0]; got.Name != "ext_weather_get" || got.Own != "get" || got.Description != "[ext:weather] does get" {
			t.Errorf("tool: %+v", got)
		}
		if s.Subject != "ext.weather.rpc" || s.Version != "1.0.0" || s.Transport != "stdio" || len(s.Hooks) != 1 {
			t.Errorf("spec: %+v", s)
		}
		d := b.state("weather")
		if d.State != heartbeat.Ready || !d.Available || len(d.Instances) != 1 || d.Instances[0].Host != "host-n1" {
			t.Errorf("state: %+v", d)
		}
		b.await("it is lost", b.is("weather", heartbeat.Lost))
		if d := b.state("weather"); d.Available || !strings.HasPrefix(d.Reason, "no heartbeat for") {
			t.Errorf("lost: %+v", d)
		}
		e.sendHeartbeats()
		b.await("it is back", b.is("weather", heartbeat.Ready))
		if n := e.count(&e.handshakes); n != 1 {
			t.Errorf("%d handshakes", n)
		}
	})
}

// TestRefused: invalid and hostile messages are refused with a reason that status shows, and harm no other extension.
func TestRefused(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	e := b.ext("weather", "1.0.0", "n1", "get")
	e.up()
	e.sendHeartbeats()
	b.await("weather is up", b.is("weather", heartbeat.Ready))
	for _, c := range []struct{ id, body, reason string }{
		{"a1", `not JSON`, "not valid JSON"},
		{"a2", `{"id":"weather","version":"1.0.0"}`, "does not match the subject's id"},
		{"A3", `{"id":"A3","version":"1.0.0"}`, "want ^[a-z]"},
		{"registry", `{"id":"registry","version":"1.0.0"}`, "reserved"},
		{"a4", `{"id":"a4","version":"` + strings.Repeat("x", 300<<10) + `"}`, "over the limit"},
		{"a5", `{"id":"a5","version":"1.0.0","schema_version":9}`, "schema_version 9 is newer"},
		{"a6.b", `{"id":"a6.b","version":"1.0.0"}`, "no parent"},
		{"a7", `{"id":"a7","version":"1.0.0","subject_prefix":"ext.registry.x"}`, "mesh's own subjects"},
		{"a8", `{"id":"a8"}`, "version"},
		{"a9", `{"id":"a9","version":"1.0.0","instance":"x.*"}`, "instance"},
		{"weather.x", `{"id":"weather.x","version":"1.0.0","parent":"weather","bridge":"other"}`, "has not been announced by bridge"},
	} {
		b.publish(prefix.Announce(c.id), c.body)
		b.await(c.id+" is refused", func() bool {
			return slices.ContainsFunc(b.status(r).Recent, func(f Refusal) bool {
				return f.What == "announce" && f.ID == c.id && strings.Contains(f.Reason, c.reason)
			})
		})
	}
	b.publish(prefix.Heartbeat("weather"), `{"id":"weather","state":"hungry"}`)
	b.publish(prefix.Shutdown("weather"), `{"id":"mail","instance":"n1"}`)
	b.publish(prefix.Suspect("weather"), `[]`)
	b.await("all of it is counted", func() bool {
		n := b.status(r).Refused
		return n["announce"] == 11 && n["beat"] == 1 && n["shutdown"] == 1 && n["suspect"] == 1
	})
	if s, ok := b.spec("weather"); !ok || len(s.Tools) != 1 || b.state("weather").State != heartbeat.Ready {
		t.Errorf("weather was harmed: %+v", s)
	}
}

// TestSubjectOwner: of two ids on one subject, the one with the mesh's own prefix wins, whichever is first.
func TestSubjectOwner(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	b.publish(prefix.Announce("x"), `{"id":"x","version":"1.0.0","subject_prefix":"ext.a"}`)
	b.await("x is there", func() bool { s, _ := b.spec("x"); return s.Subject == "ext.a.x.rpc" })
	b.publish(prefix.Announce("a.x"), `{"id":"a.x","version":"1.0.0","parent":"a"}`)
	b.await("a.x has taken over", func() bool { _, ok := b.spec("a.x"); return ok && b.get("spec.x") == nil })
	b.publish(prefix.Announce("x"), `{"id":"x","version":"1.0.0","subject_prefix":"ext.a"}`)
	b.await("x is refused", func() bool { return b.status(r).Refused["announce"] == 2 })
	if b.get("spec.x") != nil {
		t.Error("x is shown")
	}
}

// TestManifestOfService: a bridge announces a service that it does not run.
func TestManifestOfService(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	b.publish(prefix.Announce("weather"), wire.Announce{ID: "weather", Version: "1.0.0", Bridge: "b1", Transport: "nats"})
	b.await("it is shown", b.is("weather", heartbeat.Lost))
	if d := b.state("weather"); d.Reason != liveness.NoHeartbeat || len(d.Instances) != 0 || d.Available {
		t.Errorf("state: %+v", d)
	}
	e := b.ext("weather", "1.0.0", "", "get") // serves ext.weather.rpc, and sends heartbeats with its id alone
	b.publish(prefix.Heartbeat("weather"), `{"id":"weather"}`)
	b.await("it is up", b.is("weather", heartbeat.Ready))
	b.await("it has its tool", func() bool { // a handshake that failed before it served is repeated with a heartbeat
		b.publish(prefix.Heartbeat("weather"), `{"id":"weather"}`)
		s, _ := b.spec("weather")
		return len(s.Tools) == 1
	})
	b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Reason: wire.ReasonRemoved})
	b.await("it is forgotten", func() bool { return b.get("spec.weather") == nil && b.get("state.weather") == nil })
	e.silence()
}

// TestUnannounced: a service that only sends heartbeats is shown with the tools that it returns.
func TestUnannounced(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "", "get")
		e.sendHeartbeats()
		b.await("it has its tool", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 1 })
		s, _ := b.spec("weather")
		if !slices.ContainsFunc(s.Diagnostics, func(d wire.Diagnostic) bool { return d.Code == "not_announced" }) {
			t.Errorf("diagnostics: %+v", s.Diagnostics)
		}
		e.a.Features = nil
		e.announce()
		b.await("it has been announced", func() bool { s, _ := b.spec("weather"); return len(s.Diagnostics) == 0 })
	})
}

// TestRepeatedHandshakeOfHigherVersion: while the handshake of the highest version is repeated, its former tools stay, and not those
// of a lower version that is also ready.
func TestRepeatedHandshakeOfHigherVersion(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		low, high := b.ext("weather", "1.0.0", "n1", "get"), b.ext("weather", "2.0.0", "n2", "get", "set")
		for _, e := range []*fakeExt{low, high} {
			e.up()
			e.sendHeartbeats()
		}
		has := func() bool { s, _ := b.spec("weather"); return s.Version == "2.0.0" && len(s.Tools) == 2 }
		b.await("the higher version is shown", has)
		time.Sleep(time.Minute) // fake time: until the handshake may be repeated
		high.silence()
		high.a.HandshakeHash = "another list"
		high.announce()
		for range 50 {
			time.Sleep(100 * time.Millisecond) // fake time
			if s, _ := b.spec("weather"); !has() {
				t.Fatalf("during the handshake, version %s is shown with %d tools", s.Version, len(s.Tools))
			}
		}
	})
}

// TestVersions: two versions next to each other, a failed handshake, and two instances with the same version and
// other hashes.
func TestVersions(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	v1 := b.ext("weather", "1.9.0", "n1", "get")
	v1.up()
	v1.sendHeartbeats()
	tools := func(names ...string) func() bool {
		return func() bool {
			s, _ := b.spec("weather")
			return slices.EqualFunc(s.Tools, names, func(t wire.Tool, n string) bool { return t.Own == n })
		}
	}
	b.await("1.9.0 is shown", tools("get"))

	v2 := b.ext("weather", "1.10.0", "n2", "get", "set")
	v2.silence() // it sends heartbeats before it can answer
	v2.up()
	v2.sendHeartbeats()
	b.await("the failure shows", func() bool {
		s, _ := b.spec("weather")
		return len(s.Diagnostics) == 1 && s.Diagnostics[0].Code == "handshake_failed"
	})
	if s, _ := b.spec("weather"); s.Version != "1.9.0" || len(s.Tools) != 1 {
		t.Errorf("the old spec did not stay: %+v", s)
	}
	v2.serve()
	b.await("1.10.0 is shown", tools("get", "set"))

	v3 := b.ext("weather", "1.10.0", "n3", "get", "set", "delete")
	v3.up()
	v3.sendHeartbeats()
	b.await("the conflict shows", func() bool {
		s, _ := b.spec("weather")
		return len(s.Diagnostics) == 1 && s.Diagnostics[0].Code == "conflict"
	})
	if !tools("get", "set")() {
		t.Error("of one version the lowest instance is shown")
	}
}

func TestShutdownNotice(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	e := b.ext("weather", "1.0.0", "n1", "get")
	e.up()
	b.await("it is up", b.is("weather", heartbeat.Ready))
	b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Instance: "n1", Reason: "maintenance"})
	b.await("it is shut down", b.is("weather", heartbeat.Shutdown))
	if d := b.state("weather"); d.Reason != "maintenance" {
		t.Errorf("state: %+v", d)
	}
	e.up()
	b.await("it is back", b.is("weather", heartbeat.Ready))
	b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Instance: "n1", Reason: wire.ReasonRemoved})
	b.await("it is forgotten", func() bool { return b.get("spec.weather") == nil && b.get("state.weather") == nil })
}

// TestNameClash: all tools with a clashing name get a suffix, and lose it with the clash.
func TestNameClash(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	one, two := b.ext("a", "1.0.0", "n1", "b_c"), b.ext("a_b", "1.0.0", "n2", "c")
	name := func(id string) string {
		if s, _ := b.spec(id); len(s.Tools) > 0 {
			return s.Tools[0].Name
		}
		return ""
	}
	one.up()
	b.await("a is alone", func() bool { return name("a") == "ext_a_b_c" })
	two.up()
	b.await("both have suffixes", func() bool {
		return name("a") == wire.SuffixedName("a", "b_c", 6) && name("a_b") == wire.SuffixedName("a_b", "c", 6)
	})
	if s, _ := b.spec("a"); len(s.Diagnostics) != 1 || s.Diagnostics[0].Code != "name_clash" {
		t.Errorf("diagnostics: %+v", s.Diagnostics)
	}
	b.publish(prefix.Shutdown("a_b"), wire.ShutdownNotice{ID: "a_b", Instance: "n2", Reason: wire.ReasonRemoved})
	b.await("a is alone again", func() bool { return name("a") == "ext_a_b_c" })
}

// TestInstanceRestarted: the handshake is repeated with a service that restarts under its old name and announces no
// hash.
func TestInstanceRestarted(t *testing.T) {
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	e := b.ext("weather", "1.0.0", "", "get")
	e.a.HandshakeHash, e.a.Features = "", nil
	e.up()
	e.heartbeat(heartbeat.Ready)
	b.await("it has its tool", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 1 })
	e.mu.Lock()
	e.tools, e.seq = []string{"get", "set"}, 0
	e.mu.Unlock()
	e.heartbeat(heartbeat.Ready)
	b.await("it has both", func() bool { s, _ := b.spec("weather"); return len(s.Tools) == 2 })
}
