package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestManyClashes: thousands of tools with clashing names are shown, and their diagnostics take only a part of the
// spec.
func TestManyClashes(t *testing.T) {
	for _, n := range []int{1, maxAlike, maxAlike + 1, 7000} {
		var own, other []string
		x := newExtension("a_b", time.Now())
		x.shown = &announced{Announce: wire.Announce{ID: "a_b", Version: "1.0.0", SubjectPrefix: "ext"}}
		x.tools = &handshake{done: true}
		for i := range n {
			name := fmt.Sprintf("list_things_of_kind_%05d", i)
			own, other = append(own, name), append(other, "b_"+name)
			x.tools.tools = append(x.tools.tools, wire.Tool{Own: name, InputSchema: wire.EmptySchema})
		}
		var names wire.Names
		names.Set("a_b", own)
		names.Set("a", other)
		value, err := marshalSpec(x.spec(liveness.Extension{}, &names), cuts{}, 1<<20-2048)
		var s wire.Spec
		if err == nil {
			err = json.Unmarshal(value, &s)
		}
		if err != nil || len(value) > 1<<20-2048 || len(s.Tools) < n*9/10 {
			t.Errorf("%d clashes: %d bytes, %d tools, %v", n, len(value), len(s.Tools), err)
		}
		clashes, last := 0, ""
		for _, d := range s.Diagnostics {
			if d.Code == "name_clash" {
				clashes++
				last = d.Message
			}
		}
		want, end := n, " is registered as "+s.Tools[len(s.Tools)-1].Name
		if n > maxAlike {
			want, end = maxAlike+1, fmt.Sprintf("and %d more", n-maxAlike)
		}
		if clashes != want || !strings.HasSuffix(last, end) {
			t.Errorf("%d clashes: %d diagnostics, the last is %q", n, clashes, last)
		}
	}
}

// TestManyInstancesDisagree: the diagnostics of thousands of instances that differ or fail take only a part of the
// spec.
func TestManyInstancesDisagree(t *testing.T) {
	x := newExtension("a", time.Now())
	var health liveness.Extension
	for n := range 4000 {
		a := &announced{Announce: wire.Announce{ID: "a", Version: "1.0.0", Instance: fmt.Sprintf("n%04d", n), Host: strings.Repeat("h", 200),
			ManifestHash: fmt.Sprint(n)}}
		if n >= 2000 {
			a.Version = fmt.Sprint("2.0.", n)
		}
		x.announcements[a.Instance] = a
		x.handshakes[a.handshakeKey()] = &handshake{err: strings.Repeat("no", 10_000)}
		health.Instances = append(health.Instances, liveness.Instance{Instance: a.Instance, State: heartbeat.Ready})
	}
	x.shown = x.announcements["n0000"]
	codes, size := map[string]int{}, 0
	last := ""
	for _, d := range x.diagnostics(health) {
		codes[d.Code]++
		size += len(d.Message)
		last = d.Message
		if d.Code == "conflict" && !strings.HasSuffix(d.Message, " and on 1980 more") {
			t.Errorf("%s", d.Message)
		}
	}
	if want := "and 1981 more"; codes["conflict"] != 1 || codes["handshake_failed"] != maxAlike+1 || size > 32_000 || last != want {
		t.Errorf("%v, %d bytes, the last is %.100q, want %q", codes, size, last, want)
	}
}

// TestConflictNamesReplicas: replicas of one bridge are told apart by their number; that of a bridge with one has none.
func TestConflictNamesReplicas(t *testing.T) {
	x := newExtension("a", time.Now())
	var health liveness.Extension
	for n, a := range []wire.Announce{
		{Bridge: "b1", Replica: 1, ManifestHash: "new"}, {Bridge: "b1", Replica: 2, ManifestHash: "old"}, {Bridge: "b2", ManifestHash: "new"}, {Host: "h", ManifestHash: "old"},
	} {
		a.ID, a.Version, a.Instance = "a", "1.0.0", fmt.Sprint("n", n)
		x.announcements[a.Instance] = &announced{Announce: a}
		health.Instances = append(health.Instances, liveness.Instance{Instance: a.Instance, State: heartbeat.Ready})
	}
	x.shown = x.announcements["n0"]
	d, ok := x.conflict(health)
	if want := "version 1.0.0 has different manifests or tools on b1/1, b2 and on b1/2, h"; !ok || d.Message != want {
		t.Errorf("%q, want %q", d.Message, want)
	}
}
