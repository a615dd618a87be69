package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestLargeSpec: a spec that does not fit loses its largest schemas and has a diagnostic about it.
func TestLargeSpec(t *testing.T) {
	big := func(n int) wire.Tool {
		return wire.Tool{Own: fmt.Sprintf("t%d", n), InputSchema: json.RawMessage(`{"type":"object","description":"` + strings.Repeat("x", n) + `"}`)}
	}
	var tools []wire.Tool
	for n := range 100 {
		tools = append(tools, big(n*100))
	}
	value, err := marshalSpec(&wire.Spec{ID: "a", Tools: tools}, cuts{}, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	var s wire.Spec
	if err := json.Unmarshal(value, &s); err != nil {
		t.Fatal(err)
	}
	if len(value) > 100_000 || len(value) < 80_000 || len(s.Tools) != 100 || len(s.Diagnostics) != 1 || s.Diagnostics[0].Code != codeSchemaDropped {
		t.Errorf("%d bytes, %d tools, %+v", len(value), len(s.Tools), s.Diagnostics)
	}
	if string(s.Tools[99].InputSchema) != string(wire.EmptySchema) || len(s.Tools[10].InputSchema) < 1000 {
		t.Error("others than the largest were removed")
	}
	for _, limit := range []int{20_000, 5_000, 3_000} {
		if value, err := marshalSpec(&wire.Spec{ID: "a", Tools: tools}, cuts{}, limit); err != nil || len(value) > limit {
			t.Errorf("limit %d: %d bytes, %v", limit, len(value), err)
		}
	}
}

// TestLargeState: of more instances than fit, the ones in the best states are shown.
func TestLargeState(t *testing.T) {
	d := &wire.StateDoc{State: heartbeat.Ready}
	for n := range 3000 {
		i := wire.InstanceState{Instance: fmt.Sprint("n", n), State: heartbeat.Lost, Reason: strings.Repeat("x", 100)}
		if n%10 == 0 {
			i.State = heartbeat.Ready
		}
		d.Instances = append(d.Instances, i)
	}
	value, err := marshalState(d, 100_000)
	if err != nil || len(value) > 100_000 {
		t.Fatalf("%d bytes, %v", len(value), err)
	}
	var got wire.StateDoc
	if err := json.Unmarshal(value, &got); err != nil {
		t.Fatal(err)
	}
	ready := slices.IndexFunc(got.Instances, func(i wire.InstanceState) bool { return i.State != heartbeat.Ready })
	if ready != 300 || len(got.Instances) < 800 {
		t.Errorf("%d of 300 ready, %d in all", ready, len(got.Instances))
	}
}

func TestSkillMerge(t *testing.T) {
	s := skill(map[string]wire.SkillEntry{"b2": {Name: "Cook", Body: "fry"}, "b1": {Name: "Cook", Body: "boil"}, "b3": {Name: "Cook", Body: "boil"}})
	if s.Body != "boil" || !slices.Equal(s.Hosts, []string{"b1", "b2", "b3"}) || len(s.Diagnostics) != 1 ||
		s.Diagnostics[0].Message != "the skill of bridge b1 is shown; it differs on b2" {
		t.Errorf("%+v", s)
	}
	if skill(nil) != nil {
		t.Error("a skill that no bridge has")
	}
}

// TestNoSkills: an empty list of skills counts as a report.
func TestNoSkills(t *testing.T) {
	f := largeFleet(0)
	b := f.bridges.bridgeNamed("b", time.Now())
	one := []wire.SkillEntry{{Dir: "a", Name: "A"}}
	for _, tc := range []struct {
		skills []wire.SkillEntry
		marks  int
	}{{[]wire.SkillEntry{}, 0}, {one, 1}, {slices.Clone(one), 0}, {[]wire.SkillEntry{{Dir: "a", Name: "B"}}, 1}, {[]wire.SkillEntry{}, 1}} {
		clear(f.marks)
		if f.bridges.replaceSkills(b, tc.skills); b.skills == nil || len(f.marks) != tc.marks {
			t.Errorf("%v: stored %v, %d marks, want %d", tc.skills, b.skills, len(f.marks), tc.marks)
		}
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
