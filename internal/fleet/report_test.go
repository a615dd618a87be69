package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// entry is an instance in a given state.
func entry(id, instance string, state heartbeat.State) wire.InventoryInstance {
	return wire.InventoryInstance{Announce: wire.Announce{ID: id, Version: "1.0.0", Instance: instance, Bridge: "b"}, State: state}
}

// message builds a message of run r1.
func message(kind wire.InventoryKind, seq uint64, list ...wire.InventoryInstance) wire.Inventory {
	v := wire.Inventory{Bridge: "b", Run: "r1", Seq: seq, Kind: kind, Part: 1, Parts: 1, Instances: list}
	if kind == wire.InventoryFull {
		v.Host = &wire.InventoryHost{Version: "1.0.0"}
	}
	return v
}

func instances(r *Report) []wire.InstanceRef {
	return slices.SortedFunc(r.All(), wire.InstanceRef.Compare)
}

func refs(list ...string) (out []wire.InstanceRef) {
	for _, s := range list {
		id, instance, _ := strings.Cut(s, "/")
		out = append(out, wire.InstanceRef{ID: id, Instance: instance})
	}
	return out
}

func TestReportAppliesFullAndDelta(t *testing.T) {
	var r Report
	u := r.Apply(message(wire.InventoryFull, 1, entry("a", "1", "ready"), entry("b", "2", "ready")))
	if !u.Alive || !u.Complete || !u.Full || !u.Host || u.Request || u.Restarted || len(u.Changed) != 2 || len(u.Gone) != 0 {
		t.Errorf("full: %+v", u)
	}
	d := message(wire.InventoryDelta, 2, entry("c", "3", "spawning"))
	d.Removed = refs("a/1", "unknown/1")
	u = r.Apply(d)
	if !u.Complete || u.Full || len(u.Changed) != 1 || !slices.Equal(u.Gone, refs("a/1")) {
		t.Errorf("delta: %+v", u)
	}
	if got := instances(&r); !slices.Equal(got, refs("b/2", "c/3")) || !slices.Equal(r.Extensions(), []string{"b", "c"}) {
		t.Errorf("instances %v, extensions %v", got, r.Extensions())
	}
	u = r.Apply(message(wire.InventoryFull, 3, entry("c", "3", "ready")))
	if !slices.Equal(u.Gone, refs("b/2")) || len(u.Changed) != 1 {
		t.Errorf("second full inventory: %+v", u)
	}
}

func TestReportRequestsAfterGap(t *testing.T) {
	full := message(wire.InventoryFull, 1, entry("a", "1", "ready"))
	other := message(wire.InventoryDelta, 5)
	other.Run = "r2"
	for name, c := range map[string]struct {
		v     wire.Inventory
		alive bool
		want  bool
	}{
		"delta after a lost one":     {message(wire.InventoryDelta, 3), true, true},
		"heartbeat after a lost one": {message(wire.InventoryHeartbeat, 2), true, true},
		"heartbeat in sync":          {message(wire.InventoryHeartbeat, 1), true, false},
		"delta of another run":       {other, false, true},
		"the same message twice":     {full, false, false},
	} {
		var r Report
		r.Apply(full)
		u := r.Apply(c.v)
		if u.Request != c.want || u.Alive != c.alive || len(u.Changed) > 0 {
			t.Errorf("%s: %+v", name, u)
		}
		if c.want && c.alive {
			if u := r.Apply(message(wire.InventoryDelta, c.v.Seq+1)); !u.Request || u.Complete {
				t.Errorf("%s: the delta after the gap was applied: %+v", name, u)
			}
		}
	}
}

func TestReportOfSeveralParts(t *testing.T) {
	part := func(seq uint64, n, of int, list ...wire.InventoryInstance) wire.Inventory {
		v := message(wire.InventoryFull, seq, list...)
		if v.Part, v.Parts = n, of; n > 1 {
			v.Host = nil
		}
		return v
	}
	var r Report
	r.Apply(message(wire.InventoryFull, 1, entry("old", "1", "ready")))
	u := r.Apply(part(2, 1, 2, entry("a", "1", "ready")))
	if u.Complete || len(u.Gone) > 0 || !r.Lists(refs("old/1")[0]) {
		t.Errorf("first part: %+v", u)
	}
	u = r.Apply(part(3, 2, 2, entry("b", "1", "ready")))
	if !u.Complete || !slices.Equal(u.Gone, refs("old/1")) || !slices.Equal(instances(&r), refs("a/1", "b/1")) {
		t.Errorf("last part: %+v, %v", u, instances(&r))
	}
	r.Apply(part(4, 1, 3, entry("a", "1", "ready")))
	if u := r.Apply(part(6, 3, 3)); !u.Request || u.Complete || !slices.Equal(instances(&r), refs("a/1", "b/1")) {
		t.Errorf("a lost part: %+v, %v", u, instances(&r))
	}
}

// TestPendingSkills: the memory of a full inventory in parts is counted before its last part.
func TestPendingSkills(t *testing.T) {
	b := &bridge{skills: []wire.SkillEntry{{Dir: "old", Body: strings.Repeat("x", 1000)}}}
	part := func(seq uint64, n int) *wire.Inventory {
		v := message(wire.InventoryFull, seq)
		v.Part, v.Parts = n, 3
		v.Skills = []wire.SkillEntry{{Name: "s", Dir: fmt.Sprint("s", n), Body: strings.Repeat("x", 800)}}
		return &v
	}
	before := b.reportSize()
	for n, want := range []bool{false, true, true} { // the first replaces the old one
		v := part(uint64(n+1), n+1)
		if n > 0 {
			v.Host = nil
		}
		grows := b.reportGrows(v)
		if (grows > 0) != want {
			t.Errorf("part %d grows by %d", n+1, grows)
		}
		if n < 2 {
			b.inventory.Apply(*v)
			if size := b.reportSize(); size != before+grows {
				t.Errorf("part %d: %d bytes, want %d", n+1, size, before+grows)
			} else {
				before = size
			}
		}
	}
}

func TestReportOfNewRun(t *testing.T) {
	var r Report
	r.Apply(message(wire.InventoryFull, 9, entry("a", "1", "ready")))
	v := message(wire.InventoryFull, 1, entry("a", "2", "spawning"))
	v.Run = "r2"
	if u := r.Apply(v); !u.Restarted || !slices.Equal(u.Gone, refs("a/1")) {
		t.Errorf("%+v", u)
	}
	if r.Behind("r2", 1) || !r.Behind("r2", 2) || !r.Behind("r3", 1) || r.Behind("r3", 0) {
		t.Error("Behind is wrong")
	}
}

func TestReportRefusesEntries(t *testing.T) {
	var r Report
	bad := entry("a", "1", "lost")
	v := message(wire.InventoryFull, 1, bad, entry("b", "1", "ready"))
	v.Skills = []wire.SkillEntry{{Dir: "../x"}, {Dir: "y"}}
	u := r.Apply(v)
	if len(u.Refused) != 2 || len(u.Changed) != 1 || len(r.Skills()) != 1 || r.Lists(bad.Ref()) {
		t.Errorf("%+v", u)
	}
	var all []wire.InventoryInstance
	for n := range wire.MaxInventoryInstances {
		all = append(all, entry("a", fmt.Sprint(n), "ready"))
	}
	if u := r.Apply(message(wire.InventoryDelta, 2, all...)); len(u.Refused) != 1 || len(instances(&r)) != wire.MaxInventoryInstances {
		t.Errorf("%d refused, %d instances", len(u.Refused), len(instances(&r)))
	}
}

// modelBridge sends what it runs.
type modelBridge struct {
	rand   *rand.Rand
	run    int
	seq    uint64
	runs   map[wire.InstanceRef]heartbeat.State
	skills map[string]string
}

func (b *modelBridge) head(kind wire.InventoryKind) wire.Inventory {
	return wire.Inventory{Bridge: "b", Run: fmt.Sprint("r", b.run), Seq: b.seq, Kind: kind, Part: 1, Parts: 1}
}

func (b *modelBridge) entries() (out []wire.InventoryInstance) {
	for ref, state := range b.runs {
		out = append(out, entry(ref.ID, ref.Instance, state))
	}
	return out
}

func (b *modelBridge) skillList() (out []wire.SkillEntry) {
	for dir, body := range b.skills {
		out = append(out, wire.SkillEntry{Dir: dir, Body: body})
	}
	return out
}

// full sends everything in one to three parts.
func (b *modelBridge) full() (out []wire.Inventory) {
	parts := 1 + b.rand.IntN(3)
	all, skills := b.entries(), b.skillList()
	for n := range parts {
		b.seq++
		v := b.head(wire.InventoryFull)
		v.Part, v.Parts = n+1, parts
		v.Instances = all[n*len(all)/parts : (n+1)*len(all)/parts]
		v.Skills = skills[n*len(skills)/parts : (n+1)*len(skills)/parts]
		if n == 0 {
			v.Host = &wire.InventoryHost{Version: "1.0.0", Since: time.Unix(int64(b.run), 0)}
		}
		out = append(out, v)
	}
	return out
}

// step changes something and returns what is sent.
func (b *modelBridge) step() []wire.Inventory {
	ref := wire.InstanceRef{ID: fmt.Sprint("x", b.rand.IntN(4)), Instance: fmt.Sprint("i", b.rand.IntN(3))}
	states := []heartbeat.State{"ready", "restarting", "shutdown"}
	dir := fmt.Sprint("s", b.rand.IntN(3))
	switch b.rand.IntN(12) {
	case 0:
		b.run, b.seq = b.run+1, 0
		clear(b.runs)
		return b.full()
	case 1:
		return b.full()
	case 2, 3, 4:
		return []wire.Inventory{b.head(wire.InventoryHeartbeat)}
	case 5, 6:
		delete(b.runs, ref)
		delete(b.skills, dir)
		b.seq++
		v := b.head(wire.InventoryDelta)
		v.Removed, v.RemovedSkills = []wire.InstanceRef{ref}, []string{dir}
		return []wire.Inventory{v}
	}
	b.runs[ref] = states[b.rand.IntN(len(states))]
	b.skills[dir] = fmt.Sprint(b.rand.Int())
	b.seq++
	v := b.head(wire.InventoryDelta)
	v.Instances = []wire.InventoryInstance{entry(ref.ID, ref.Instance, b.runs[ref])}
	v.Skills = []wire.SkillEntry{{Dir: dir, Body: b.skills[dir]}}
	return []wire.Inventory{v}
}

// TestRandomReports sends the messages of a bridge that changes and restarts at random to a registry that loses, doubles
// and reorders them. After one heartbeat without a loss, and the full inventory if it is requested, what the updates
// have built is what the bridge runs.
func TestRandomReports(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := &modelBridge{rand: rnd, run: 1, runs: map[wire.InstanceRef]heartbeat.State{}, skills: map[string]string{}}
		var r Report
		seen := map[wire.InstanceRef]heartbeat.State{}
		receive := func(v wire.Inventory) Update {
			u := r.Apply(v)
			for _, i := range u.Changed {
				seen[i.Ref()] = i.State
			}
			for _, ref := range u.Gone {
				delete(seen, ref)
			}
			return u
		}
		var way []wire.Inventory
		for range 60 {
			way = append(way, b.step()...)
			for len(way) > rnd.IntN(4) {
				at := 0
				if rnd.IntN(8) == 0 {
					at = rnd.IntN(len(way)) // overtakes others
				}
				v := way[at]
				if rnd.IntN(8) != 0 { // else it is delivered and stays: it arrives twice
					way = slices.Delete(way, at, at+1)
				}
				if rnd.IntN(6) == 0 {
					continue // lost
				}
				if u := receive(v); u.Request && rnd.IntN(2) == 0 {
					way = append(way, b.full()...)
				}
			}
		}
		if u := receive(b.head(wire.InventoryHeartbeat)); u.Request {
			for _, v := range b.full() {
				receive(v)
			}
		}
		if !r.Synced() || r.Behind(fmt.Sprint("r", b.run), b.seq) {
			t.Fatalf("seed %d: not in sync at the end", seed)
		}
		if !maps.Equal(seen, b.runs) {
			t.Fatalf("seed %d: the updates give %v, the bridge runs %v", seed, seen, b.runs)
		}
		got := map[string]string{}
		for _, s := range r.Skills() {
			got[s.Dir] = s.Body
		}
		if !maps.Equal(got, b.skills) {
			t.Fatalf("seed %d: skills %v, want %v", seed, got, b.skills)
		}
	}
}
