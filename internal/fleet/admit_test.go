package fleet

import (
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestRepeats: an announcement without news changes nothing; any other one has its extension re-evaluated.
func TestRepeats(t *testing.T) {
	l := largeFleet(0)
	l.bridges.bridgeNamed("b", time.Now())
	say := func(change func(a *announced)) bool {
		a := &announced{Announce: wire.Announce{ID: "weather", Version: "1.0.0", Instance: "one", Bridge: "b", HandshakeHash: "h",
			Transport: "stdio", Dialect: "ext", SubjectPrefix: string(l.cfg.Prefix)}, at: time.Now(), digest: "d", size: 10}
		change(a)
		clear(l.reconsider)
		if l.natives.admit(a, time.Now()) == nil {
			t.Fatal("refused")
		}
		return l.reconsider["weather"]
	}
	same := func(*announced) {}
	for _, tc := range []struct {
		name string
		do   func()
		say  func(a *announced)
		want bool
	}{
		{"first", func() {}, same, true},
		{"again", func() {}, same, false},
		{"another digest", func() {}, func(a *announced) { a.digest = "e" }, true},
		{"and back", func() {}, same, true},
		{"listed by a bridge", func() {}, func(a *announced) { a.from = "b" }, true},
		{"and again by the bridge", func() {}, func(a *announced) { a.from = "b" }, false},
		{"its tools are not vouched for", func() {}, func(a *announced) { a.HandshakeHash = "" }, true},
	} {
		tc.do()
		if got := say(tc.say); got != tc.want {
			t.Errorf("%s: re-evaluated: %v", tc.name, got)
		}
	}
	if l.size != extensionRoom+10 {
		t.Errorf("%d bytes are counted", l.size)
	}
}
