package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
)

// FuzzParseAnnounce: an accepted announcement can be shown and restored, and has a valid subject.
func FuzzParseAnnounce(f *testing.F) {
	f.Add("weather", []byte(`{"id":"weather","version":"1.0.0","instance":"n1","features":["instance"]}`))
	f.Add("google.gmail", []byte(`{"id":"google.gmail","version":"1.0.0","parent":"google","bridge":"b","subject_prefix":"a.b"}`))
	now := time.Unix(1, 0)
	f.Fuzz(func(t *testing.T, id string, data []byte) {
		a, err := parseAnnounce(id, data, "ext")
		if err != nil {
			return
		}
		accepted := &announced{Announce: a}
		if a.ID != id || checkHeartbeatID(id) != nil || strings.ContainsAny(accepted.rpcSubject(), " *>\t\r\n") || strings.Contains(accepted.rpcSubject(), "..") {
			t.Errorf("%+v has the subject %q", a, accepted.rpcSubject())
		}
		x := newExtension(id, now)
		x.announcements[a.Instance] = accepted
		x.choose(liveness.Extension{})
		value, err := plainjson.Marshal(x.spec(liveness.Extension{}, new(wire.Names)))
		if err != nil {
			t.Fatal(err)
		}
		again := newExtension(id, now)
		if !again.restore(value, now) || again.shown.subject() != accepted.subject() {
			t.Errorf("%s restores to %+v", value, again.shown)
		}
	})
}

// TestConflictingID: of all announcements with the same subject and another id, conflictingID returns the id.
func TestConflictingID(t *testing.T) {
	ids := []string{"a", "b", "a.b", "b.a", "a.a"}
	var all []*announced
	for _, sp := range []string{"a", "p", "p.a", "p.b", "a.b", "p.a.b", "a.p.b.a"} {
		for _, id := range ids {
			all = append(all, &announced{Announce: wire.Announce{ID: id, SubjectPrefix: sp}})
		}
	}
	pairs := 0
	for _, a := range all {
		for _, b := range all {
			if a.subject() != b.subject() || a.ID == b.ID {
				continue
			}
			pairs++
			if a.conflictingID() != b.ID {
				t.Errorf("conflicting id of %s with the prefix %s: %s, want %s", a.ID, a.SubjectPrefix, a.conflictingID(), b.ID)
			}
		}
	}
	if pairs == 0 {
		t.Error("no two announcements have the same subject")
	}
}
