package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// shownDiagnostics are the level, code and message of each diagnostic of an extension.
func (f *fixture) shownDiagnostics(id string) (out []string) {
	f.settle()
	health, _ := f.mon.Extension(id)
	for _, d := range f.exts[id].diagnostics(health) {
		out = append(out, d.Level+" "+d.Code+": "+d.Message)
	}
	return out
}

// TestRefusedHeartbeats: an extension shows why its heartbeats are refused, until one is accepted.
func TestRefusedHeartbeats(t *testing.T) {
	for bad, want := range map[string]string{
		`{"id":"weather","instance":"i1","uptime_secs":12.34}`:  "heartbeat cannot be decoded: uptime_secs has the wrong type: number 12.34",
		`{"id":"weather","instance":"i1","interval_ms":"2000"}`: "heartbeat cannot be decoded: interval_ms has the wrong type: string",
		`{"id":"weather","instance":"i1","state":"READY"}`:      `heartbeat of weather has the unknown state "READY"`,
		`{"id":"weather"}`: errNoInstance.Error(),
		`{"id":"weather"`:  "heartbeat cannot be decoded: unexpected end of JSON input",
		`{"id":"weather","state":"` + strings.Repeat("x", 9000) + `"}`: `heartbeat of weather has the unknown state "xxx`,
	} {
		f := testFleet(t)
		f.Elected(f.at)
		f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "i1", HandshakeHash: "h"})
		f.settle()
		f.Control("heartbeat", "weather", []byte(bad), f.at)
		if marks, _ := f.Take(); len(marks) != 1 {
			t.Errorf("%.80s: %v is written", bad, marks)
		}
		got := f.shownDiagnostics("weather")
		if len(got) != 1 || !strings.HasPrefix(got[0], "error refused: its heartbeats are refused: "+want) || len(got[0]) > maxReason+100 {
			t.Errorf("%.80s: %q", bad, got)
		}
		f.at = f.at.Add(refusalInterval)
		f.Control("heartbeat", "weather", []byte(`{"id":"weather","instance":"i1"}`), f.at)
		marks, _ := f.Take()
		if _, written := marks[SpecKey("weather")]; !written || len(f.shownDiagnostics("weather")) != 0 {
			t.Errorf("%.80s: after one that is accepted: %q, %v is written", bad, f.shownDiagnostics("weather"), marks)
		}
	}
}

// TestManyRefusedHeartbeats: heartbeats that are refused for reasons that change, next to those of another instance that are accepted,
// write the spec at most once a minute. Without further ones the diagnostic ends. An id without an extension gets none.
func TestManyRefusedHeartbeats(t *testing.T) {
	f := testFleet(t)
	f.Elected(f.at)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "i1", HandshakeHash: "h"})
	f.send("heartbeat", "weather", `{"id":"weather","instance":"i1"}`)
	written := 0
	for n := range 600 {
		f.at = f.at.Add(time.Second)
		f.Control("heartbeat", "weather", fmt.Appendf(nil, `{"id":"weather","instance":"i2","uptime_secs":%d.5}`, n), f.at)
		f.Control("heartbeat", "weather", []byte(`{"id":"weather","instance":"i1"}`), f.at)
		f.Control("heartbeat", "wind", fmt.Appendf(nil, `{"id":"wind","uptime_secs":%d.5}`, n), f.at)
		marks, _ := f.Take()
		if _, ok := marks[SpecKey("weather")]; ok {
			written++
		}
		if got := f.shownDiagnostics("weather"); len(got) != 1 || len(marks) > 1 {
			t.Fatalf("%q, %v is written", got, marks)
		}
	}
	if written != 10 || len(f.exts) != 1 || len(f.natives.unannounced) != 0 {
		t.Errorf("the spec is written %d times in 10 minutes, %d extensions, %d other ids", written, len(f.exts), len(f.natives.unannounced))
	}
	for range sweepTicks {
		f.Tick(f.at)
	}
	if got := f.shownDiagnostics("weather"); len(got) != 1 {
		t.Errorf("at the end: %q", got)
	}
	f.at = f.at.Add(maxUnused + time.Second)
	for range sweepTicks {
		f.Tick(f.at)
	}
	if got := f.shownDiagnostics("weather"); len(got) != 0 {
		t.Errorf("after %v: %q", maxUnused, got)
	}
}

// TestRefusalsEnd: what an instance that has gone has sent is not shown for ever, although the others announce themselves only once.
// An instance that runs keeps it. Heartbeats without an instance, next to those of another one, do not write the spec each time.
func TestRefusalsEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sent  [][2]string // operation, body
		shown int
	}{
		{"fixed, and restarted with another name", [][2]string{{"announce", `{"id":"weather","version":1,"instance":"i1"}`},
			{"shutdown", `{"id":"weather","instance":"i1","reason":"removed"}`}, {"announce", `{"id":"weather","version":"1.0.0","instance":"i2","handshake_hash":"h"}`}}, 0},
		{"rolled back", [][2]string{{"announce", `{"id":"weather","version":"1.0.0","instance":"i2","handshake_hash":"h"}`}, {"heartbeat", `{"id":"weather","instance":"i2"}`},
			{"announce", `{"id":"weather","version":1,"instance":"i1"}`}, {"shutdown", `{"id":"weather","instance":"i1","reason":"removed"}`}}, 0},
		{"running", [][2]string{{"announce", `{"id":"weather","version":1,"instance":"i2"}`}}, 1},
	} {
		f := testFleet(t)
		f.Elected(f.at)
		f.send("heartbeat", "weather", `{"id":"weather","instance":"i1"}`)
		f.send("heartbeat", "weather", `{"id":"weather","instance":"i2"}`)
		for _, m := range tt.sent {
			f.send(m[0], "weather", m[1])
			f.at = f.at.Add(time.Second)
		}
		for end := f.at.Add(2 * maxUnused); f.at.Before(end); f.at = f.at.Add(15 * time.Second) {
			f.send("heartbeat", "weather", `{"id":"weather","instance":"i2"}`)
			for range sweepTicks {
				f.Tick(f.at)
			}
		}
		if got := f.shownDiagnostics("weather"); strings.Count(strings.Join(got, " "), "announcements are refused") != tt.shown {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
	f := testFleet(t)
	f.Elected(f.at)
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "i1", HandshakeHash: "h"})
	written := 0
	for range 100 {
		for _, body := range []string{`{"id":"weather"}`, `{"id":"weather","instance":"i1"}`} {
			f.at = f.at.Add(7 * time.Second)
			f.Control("heartbeat", "weather", []byte(body), f.at)
			if marks, _ := f.Take(); len(marks) > 0 {
				written++
			}
		}
	}
	if got := f.shownDiagnostics("weather"); len(got) != 1 || written != 2 {
		t.Errorf("%q, written %d times", got, written)
	}
}

// TestRefusedAnnouncements: a service whose announcements are refused is shown from its heartbeats, with the reason, until an
// announcement is accepted. An extension that was announced shows why others are refused.
func TestRefusedAnnouncements(t *testing.T) {
	const good = `{"id":"weather","version":"1.0.0","instance":"i1","handshake_hash":"h"}`
	for bad, reason := range map[string]string{
		`{"id":"weather","version":"1.0.0","instance":"i1","features":"stream"}`: "features in the announcement has the wrong type: string",
		`{"id":"weather","version":1,"instance":"i1"}`:                           "version in the announcement has the wrong type: number",
		`{"id":"weather","version":"1.0.0","priority":1.5}`:                      "priority in the announcement has the wrong type: number 1.5",
		`{"id":"weather","version":"1.0.0","capabilities":[]}`:                   "capabilities in the announcement has the wrong type: array",
		`{"id":"weather","version":"1.0.0","schema_version":9}`:                  "schema_version 9 is newer",
	} {
		f := testFleet(t)
		f.Elected(f.at)
		for range 2 { // the registry requests its announcement
			f.send("heartbeat", "weather", `{"id":"weather","instance":"i1"}`)
			f.send("announce", "weather", bad)
			f.at = f.at.Add(15 * time.Second)
		}
		got := f.shownDiagnostics("weather")
		if want := "error not_announced: what is shown comes from the heartbeats of the extension; its announcements are refused: " + reason; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q", bad, got)
		}
		f.send("announce", "weather", good)
		if got := f.shownDiagnostics("weather"); len(got) != 0 {
			t.Errorf("%s: after one that is accepted: %q", bad, got)
		}
		f.at = f.at.Add(refusalInterval)
		f.send("announce", "weather", bad)
		if got := f.shownDiagnostics("weather"); len(got) != 1 || !strings.HasPrefix(got[0], "error refused: its announcements are refused: "+reason) {
			t.Errorf("%s after one that was accepted: %q", bad, got)
		}
		f.send("announce", "weather", good)
		if got := f.shownDiagnostics("weather"); len(got) != 0 {
			t.Errorf("%s: after a repeated announcement: %q", bad, got)
		}
	}
}

// TestRefusedAnnouncementRestored: a service that is shown from its heartbeats, with the reason, is restored as such.
func TestRefusedAnnouncementRestored(t *testing.T) {
	x := newExtension("weather", time.Now())
	s := wire.Spec{ID: "weather", Version: "1.0.0", Subject: "ext.weather.rpc", Tools: []wire.Tool{{Own: "now"}}, Diagnostics: []wire.Diagnostic{
		{Level: "error", Code: codeNotAnnounced, Message: "m"}, {Level: "error", Code: codeRefused, Message: "m"}}}
	if !x.restore(encode(t, s), time.Now()) || !x.shown.implied || len(x.tools.notes) != 0 {
		t.Errorf("%+v, %+v", x.shown, x.tools)
	}
}
