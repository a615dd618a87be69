package registry

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func TestShowsLostAndBack(t *testing.T) {
	b := newBed(t)
	b.registry(Config{Heartbeat: heartbeat.Config{Grace: 1}})
	e := b.ext("weather", "1.0.0", "n1", "get", "set")
	b.await("the bucket is there", func() bool { return b.get("epoch.registry") != nil })
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
	e.beat(heartbeat.Ready)
	b.await("it is back", b.is("weather", heartbeat.Ready))
	if n := e.count(&e.asked); n != 1 {
		t.Errorf("asked for its tools %d times", n)
	}
}
