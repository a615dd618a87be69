package fleet

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
)

// Report is what one bridge has reported in its inventory messages (docs/protocol.md, "Inventory"). Its zero value is
// the report of a bridge from which nothing was received.
type Report struct {
	Host       wire.InventoryHost
	IntervalMS int64 // of the bridge's heartbeats

	run    string
	seq    uint64
	synced bool      // every message of run up to seq was received, and a full inventory among them
	full   *contents // the full inventory of which not all parts have been received; nil if there is none
	contents
}

// contents are the entries of an inventory.
type contents struct {
	instances map[wire.InstanceRef]struct{}
	skills    map[string]wire.SkillEntry // by directory
}

func newContents() contents {
	return contents{map[wire.InstanceRef]struct{}{}, map[string]wire.SkillEntry{}}
}

// Update is what follows from one inventory message.
type Update struct {
	Alive     bool // it is a message of the bridge's current run
	Restarted bool // it is the first message of another run than before
	Request   bool // messages are missing: the full inventory is needed
	Complete  bool // the report now lists everything at the bridge; after a full inventory and each delta
	Host      bool // Report.Host has changed
	Skills    bool // the skills have changed, or may have: after a full inventory
	Full      bool // with Complete: everything that is not in the report is gone

	Changed []wire.InventoryInstance // new and changed entries
	Gone    []wire.InstanceRef       // entries that the bridge has removed, or no longer lists
	Refused []error                  // entries that are left out, and why
}

// Apply processes a message that ParseInventory has accepted.
func (r *Report) Apply(v wire.Inventory) Update {
	sameRun := v.Run == r.run
	switch {
	case v.Kind == wire.InventoryFull && v.Part == 1 && (!sameRun || v.Seq > r.seq):
		return r.begin(v, r.run != "" && !sameRun)
	case !sameRun:
		return Update{Request: true}
	case v.Kind == wire.InventoryHeartbeat && v.Seq <= r.seq:
		return Update{Alive: true, Request: !r.synced}
	case v.Kind == wire.InventoryHeartbeat:
		return r.lose()
	case v.Seq <= r.seq:
		return Update{} // received twice, or late
	case v.Seq > r.seq+1, v.Kind == wire.InventoryFull && r.full == nil, v.Kind == wire.InventoryDelta && !r.synced:
		return r.lose()
	}
	r.seq = v.Seq
	u := Update{Alive: true}
	if v.Kind == wire.InventoryFull {
		r.list(r.full, v, &u)
		r.finish(v, &u)
		return u
	}
	r.delta(v, &u)
	return u
}

// lose records that messages of the current run were lost.
func (r *Report) lose() Update {
	r.synced, r.full = false, nil
	return Update{Alive: true, Request: true}
}

// begin processes the first part of a full inventory.
func (r *Report) begin(v wire.Inventory, restarted bool) Update {
	next := newContents()
	if r.instances == nil {
		r.contents = newContents()
	}
	r.run, r.seq, r.synced, r.full = strings.Clone(v.Run), v.Seq, false, &next
	u := Update{Alive: true, Restarted: restarted, Host: true}
	r.setHead(v)
	r.list(r.full, v, &u)
	r.finish(v, &u)
	return u
}

func (r *Report) setHead(v wire.Inventory) {
	if v.Host != nil {
		r.Host = *v.Host
	}
	if v.IntervalMS > 0 {
		r.IntervalMS = v.IntervalMS
	}
}

// list adds the entries of a message to c.
func (r *Report) list(c *contents, v wire.Inventory, u *Update) {
	for _, i := range v.Instances {
		ref := i.Ref()
		_, known := c.instances[ref]
		err := i.Check(v.Bridge)
		if err == nil && !known && (len(c.instances) >= wire.MaxInventoryInstances || len(r.instances) >= 2*wire.MaxInventoryInstances) {
			err = fmt.Errorf("bridge %s lists more than %d instances", v.Bridge, wire.MaxInventoryInstances)
		}
		if err != nil {
			u.Refused = append(u.Refused, err)
			continue
		}
		c.instances[ref] = struct{}{}
		r.instances[ref] = struct{}{} // also of a full inventory whose last part gets lost, for the next one to remove
		u.Changed = append(u.Changed, i)
	}
	for _, s := range v.Skills {
		_, known := c.skills[s.Dir]
		err := checkSkill(s)
		if err == nil && !known && len(c.skills) >= wire.MaxInventorySkills {
			err = fmt.Errorf("bridge %s lists more than %d skills", v.Bridge, wire.MaxInventorySkills)
		}
		if err != nil {
			u.Refused = append(u.Refused, err)
			continue
		}
		c.skills[s.Dir] = s
	}
}

// finish ends a full inventory if v is its last part. part numbers need no check of their own: parts are consecutive
// messages.
func (r *Report) finish(v wire.Inventory, u *Update) {
	if v.Part < v.Parts {
		return
	}
	before := r.contents
	r.contents, r.full, r.synced = *r.full, nil, true
	u.Complete, u.Full, u.Skills = true, true, true // without skills, those in the catalog are outdated
	for ref := range before.instances {
		if _, listed := r.instances[ref]; !listed {
			u.Gone = append(u.Gone, ref)
		}
	}
	slices.SortFunc(u.Gone, wire.InstanceRef.Compare)
}

func (r *Report) delta(v wire.Inventory, u *Update) {
	r.setHead(v)
	u.Complete, u.Host = true, v.Host != nil
	u.Skills = len(v.Skills)+len(v.RemovedSkills) > 0
	for _, ref := range v.Removed {
		if _, known := r.instances[ref]; known {
			delete(r.instances, ref)
			u.Gone = append(u.Gone, ref)
		}
	}
	for _, dir := range v.RemovedSkills {
		delete(r.skills, dir)
	}
	r.list(&r.contents, v, u)
}

// Lose makes the full inventory necessary: the next message requests it.
func (r *Report) Lose() { r.lose() }

// Synced reports whether the report lists everything that the bridge has reported so far.
func (r *Report) Synced() bool { return r.synced }

// Behind reports whether the bridge, in the given run, has sent messages after those that were received.
func (r *Report) Behind(run string, seq uint64) bool {
	return seq > 0 && (run != r.run || seq > r.seq || !r.synced)
}

// Lists reports whether the report has an entry.
func (r *Report) Lists(ref wire.InstanceRef) bool {
	_, ok := r.instances[ref]
	return ok
}

// All yields the entries, in no order.
func (r *Report) All() iter.Seq[wire.InstanceRef] { return maps.Keys(r.instances) }

// Extensions returns the ids of the instances in order, without manifests of services that run elsewhere.
func (r *Report) Extensions() []string {
	ids := make([]string, 0, len(r.instances))
	for ref := range r.instances {
		if ref.Instance != "" {
			ids = append(ids, ref.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Skills returns the skills in the order of their directories.
func (r *Report) Skills() []wire.SkillEntry {
	out := make([]wire.SkillEntry, 0, len(r.skills))
	for _, dir := range slices.Sorted(maps.Keys(r.skills)) {
		out = append(out, r.skills[dir])
	}
	return out
}

// pendingSkills is about the number of bytes stored of the skills in a full inventory that is not complete.
func (r *Report) pendingSkills() (sum int) {
	if r.full == nil {
		return 0
	}
	return skillsSize(slices.Collect(maps.Values(r.full.skills)))
}

// Size is about the number of bytes stored of the entries, without the announcements and the skills.
func (r *Report) Size() (sum int) {
	for ref := range r.instances {
		sum += len(ref.ID) + len(ref.Instance) + refRoom
	}
	return sum
}

const refRoom = 64 // of an entry in a map, in addition to its texts
