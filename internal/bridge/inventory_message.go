package bridge

import (
	"encoding/json"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
)

const (
	inventoryRoom = 1 << 10 // for the members that all messages have
	maxProblem    = 2 << 10 // bytes of the text of one problem in a report that is too large
)

// fullInventory returns the full inventory as messages of at most limit bytes each.
func fullInventory(head wire.Inventory, host wire.InventoryHost, instances []wire.InventoryInstance, skills []wire.SkillEntry, limit int) []wire.Inventory {
	head.Kind = wire.InventoryFull
	p := packer{head: head, limit: limit - inventoryRoom}
	host = fitHost(host, p.limit)
	p.add(encodedSize(host), func(m *wire.Inventory) { m.Host = &host })
	p.instances(instances)
	for _, s := range skills {
		if size := encodedSize(s); size <= p.limit { // a SKILL.md is far smaller than a message of a server with usual limits
			p.add(size, func(m *wire.Inventory) { m.Skills = append(m.Skills, s) })
		}
	}
	if len(p.out) > 1 {
		for i := range p.out {
			p.out[i].Part, p.out[i].Parts = i+1, len(p.out)
		}
	}
	return p.out
}

// deltas returns changes as messages of at most limit bytes each.
func deltas(head wire.Inventory, instances []wire.InventoryInstance, removed []wire.InstanceRef, limit int) []wire.Inventory {
	head.Kind = wire.InventoryDelta
	p := packer{head: head, limit: limit - inventoryRoom}
	p.instances(instances)
	for _, ref := range removed {
		p.add(encodedSize(ref), func(m *wire.Inventory) { m.Removed = append(m.Removed, ref) })
	}
	return p.out
}

// packer distributes entries over messages.
type packer struct {
	head  wire.Inventory
	limit int // of the entries of one message
	out   []wire.Inventory
	size  int // of the entries of the last message
}

// add has put add an entry of size bytes to a message that has room for it.
func (p *packer) add(size int, put func(*wire.Inventory)) {
	size++ // a comma
	if len(p.out) == 0 || p.size+size > p.limit {
		p.out, p.size = append(p.out, p.head), 0
	}
	p.size += size
	put(&p.out[len(p.out)-1])
}

func (p *packer) instances(list []wire.InventoryInstance) {
	for _, i := range list {
		size := encodedSize(i)
		if size > p.limit { // a registry needs neither to show it and call it
			i.Capabilities, i.Description = wire.Capabilities{}, ""
			size = encodedSize(i)
		}
		p.add(size, func(m *wire.Inventory) { m.Instances = append(m.Instances, i) })
	}
}

// fitHost returns h with at most limit bytes. If h is larger, it cuts long texts and then leaves out the last problems.
func fitHost(h wire.InventoryHost, limit int) wire.InventoryHost {
	if encodedSize(h) <= limit {
		return h
	}
	all := h.Problems
	h.Problems = nil
	h.ProblemsLeftOut = len(all) // reserves room for the number
	size := encodedSize(h) + len(`"problems":[],`)
	for _, p := range all {
		if len(p.Message) > maxProblem {
			p.Message = strings.ToValidUTF8(p.Message[:maxProblem], "") + " [cut]"
		}
		if size += encodedSize(p) + 1; size > limit {
			break
		}
		h.Problems = append(h.Problems, p)
	}
	h.ProblemsLeftOut = len(all) - len(h.Problems)
	return h
}

// encodedSize returns the length of v as JSON.
func encodedSize(v any) int {
	data, _ := json.Marshal(v) // its strings, numbers and time can always be encoded
	return len(data)
}
