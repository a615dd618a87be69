package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// choiceFixture is a leader with two instances of one extension, each with a tool of its own.
func choiceFixture(t *testing.T, low, high wire.Announce) *fixture {
	f := testFleet(t)
	f.limits.Spec = 1 << 20
	f.Elected(f.at)
	for _, a := range []wire.Announce{low, high} {
		f.announceWithTool(a)
	}
	return f
}

func instanceOf(version, instance, hash string) wire.Announce {
	return wire.Announce{ID: "weather", Version: version, Instance: instance, HandshakeHash: hash, Features: []string{wire.FeatureInstance}}
}

// announceWithTool announces an instance, and answers its handshake with one tool, named as its hash.
func (f *fixture) announceWithTool(a wire.Announce) {
	f.Helper()
	f.announce(a)
	f.beat(a.Instance, heartbeat.Ready)
	f.completeHandshake(a.HandshakeHash)
}

func (f *fixture) completeHandshake(tool string) {
	f.Helper()
	f.HandshakeDone(effectOf[Handshake](f.T, f), ParseOffer(json.RawMessage(`{"tools":[{"name":"`+tool+`"}]}`), nil, 1<<20), f.at)
	f.settle()
}

func (f *fixture) beat(instance string, state heartbeat.State) {
	f.send("heartbeat", "weather", fmt.Sprintf(`{"id":"weather","instance":%q,"state":%q}`, instance, state))
}

// shows checks the tool in the spec.
func (f *fixture) shows(when, tool string) {
	f.Helper()
	health, _ := f.mon.Extension("weather")
	s := f.exts["weather"].spec(health, &f.names)
	if len(s.Tools) != 1 || s.Tools[0].Own != tool {
		f.Errorf("%s: version %s is shown with the tools %+v, want %s", when, s.Version, s.Tools, tool)
	}
}

// TestToolsStayDuringRestart: while the instance that is shown restarts, the catalog does not show the tools of another one in
// between. When it has failed or stopped, it does.
func TestToolsStayDuringRestart(t *testing.T) {
	for name, tt := range map[string]struct{ shown, other wire.Announce }{
		"two versions":                     {instanceOf("2.0.0", "n2", "new"), instanceOf("1.0.0", "n1", "old")},
		"one version with different tools": {instanceOf("1.0.0", "n1", "new"), instanceOf("1.0.0", "n2", "old")},
	} {
		t.Run(name, func(t *testing.T) {
			f := choiceFixture(t, tt.other, tt.shown)
			f.shows("at first", "new")
			f.beat(tt.shown.Instance, heartbeat.Restarting)
			f.shows("during the restart", "new")
			f.beat(tt.other.Instance, heartbeat.Ready)
			f.shows("after a heartbeat of the other one", "new")
			f.beat(tt.shown.Instance, heartbeat.Ready)
			f.shows("after the restart", "new")
			f.beat(tt.shown.Instance, heartbeat.Failed)
			f.shows("after it has failed", "old")
		})
	}
}

// TestToolsStayDuringHandshake: an instance that is shown announces other tools. Until its handshake is complete, the catalog does
// not show the tools of another instance of the same version.
func TestToolsStayDuringHandshake(t *testing.T) {
	shown, other := instanceOf("1.0.0", "n1", "first"), instanceOf("1.0.0", "n2", "other")
	f := choiceFixture(t, other, shown)
	f.shows("at first", "first")
	shown.HandshakeHash = "second"
	f.announce(shown)
	f.shows("after its announcement", "first")
	f.completeHandshake("second")
	f.shows("after its handshake", "second")
	shown.HandshakeHash = "third"
	f.announce(shown)
	f.beat("n1", heartbeat.Shutdown)
	f.shows("after its end", "other")
}

// TestLowestInstanceIsShown: an instance of the same version with a lower name replaces what is shown.
func TestLowestInstanceIsShown(t *testing.T) {
	f := choiceFixture(t, instanceOf("1.0.0", "n2", "second"), instanceOf("1.0.0", "n1", "first"))
	f.shows("after both handshakes", "first")
}

// TestStreamOfAllInstances: NATS gives a call to any instance, so the spec has the feature stream only if each of them has it.
func TestStreamOfAllInstances(t *testing.T) {
	low, high := instanceOf("1.0.0", "n1", "old"), instanceOf("2.0.0", "n2", "new")
	high.Features = append(high.Features, wire.FeatureStream)
	f := choiceFixture(t, low, high)
	for _, tt := range []struct {
		low      heartbeat.State
		streamed bool
	}{{heartbeat.Restarting, false}, {heartbeat.Ready, false}, {heartbeat.Draining, true}, {heartbeat.Ready, false}, {heartbeat.Shutdown, true}} {
		f.Control("heartbeat", "weather", encode(t, heartbeat.Message{ID: "weather", Instance: "n1", State: tt.low}), f.at)
		f.Settle(f.at)
		marks, _ := f.Take()
		var s wire.Spec
		data, err := f.Document(SpecKey("weather"), nil, f.at)
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		_, marked := marks[SpecKey("weather")]
		if err != nil || slices.Contains(s.Features, wire.FeatureStream) != tt.streamed || !slices.Contains(s.Features, wire.FeatureInstance) || !marked {
			t.Errorf("while the other instance is %s, the spec has the features %v, %v; it is marked: %v", tt.low, s.Features, err, marked)
		}
	}
	if !slices.Contains(f.exts["weather"].announcements["n2"].Features, wire.FeatureStream) {
		t.Error("its announcement has changed")
	}
}
