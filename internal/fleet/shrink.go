package fleet

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
)

// codeSchemaDropped is the diagnostic of a spec that was too large for one message.
const codeSchemaDropped = "schema_dropped"

// codeNotAnnounced is for an extension that only sends heartbeats, and codeInstancesNotAnnounced for an announced extension with
// ready instances that only send heartbeats.
const (
	codeNotAnnounced          = "not_announced"
	codeInstancesNotAnnounced = "instances_not_announced"
)

// cuts counts what was left out of an extension's tools because it does not fit into the catalog.
type cuts struct {
	schemas int // tools shown with the schema {"type":"object"}
	members int // tools shown without the other members of their descriptor
	tools   int // tools that are not shown
}

// cut returns tools shortened by about over bytes: first the largest schemas are replaced, then other members are
// removed from the descriptors with the most of them, and finally tools are left out.
func (c *cuts) cut(tools []wire.Tool, over int) []wire.Tool {
	tools = slices.Clone(tools)
	for _, n := range largest(tools, func(t wire.Tool) int { return len(t.InputSchema) }) {
		saved := len(tools[n].InputSchema) - len(wire.EmptySchema)
		if over <= 0 || saved <= 0 {
			break
		}
		tools[n].InputSchema = wire.EmptySchema
		over -= saved
		c.schemas++
	}
	for _, n := range largest(tools, wire.ExtraSize) {
		saved := wire.ExtraSize(tools[n])
		if over <= 0 || saved == 0 {
			break
		}
		tools[n].Extra = nil
		over -= saved
		c.members++
	}
	for over > 0 && len(tools) > 0 {
		last := len(tools) - 1
		over -= wire.ToolSize(tools[last])
		tools = tools[:last]
		c.tools++
	}
	return tools
}

// notes returns the diagnostics of c for an extension with shown tools in its spec.
func (c *cuts) notes(shown, limit int) (out []wire.Diagnostic) {
	all := shown + c.tools
	note := func(count int, format string) {
		if count > 0 {
			out = append(out, wire.Diagnostic{Level: "warn", Code: codeSchemaDropped,
				Message: fmt.Sprintf(format, count, all) + fmt.Sprintf(": the spec was over the limit when they were read, or is over the present one of %d bytes", limit)})
		}
	}
	note(c.schemas, `the schemas of %d of %d tools are shown as {"type":"object"}`)
	note(c.members, "the descriptors' other members are left out of %d of %d tools")
	note(c.tools, "%d of %d tools are left out")
	return out
}

// notesRoom is kept free for the diagnostics of a cut.
const notesRoom = 1024

// marshalSpec encodes a spec in at most limit bytes. already is what was left out of its tools before.
func marshalSpec(s *wire.Spec, already cuts, limit int) ([]byte, error) {
	diagnostics := s.Diagnostics
	for c := already; ; {
		s.Diagnostics = slices.Concat(diagnostics, c.notes(len(s.Tools), limit))
		value, err := wire.EncodeSpec(s)
		if err != nil || len(value) <= limit || len(s.Tools) == 0 {
			return value, err
		}
		s.Tools = c.cut(s.Tools, len(value)-limit+notesRoom)
	}
}

// largest returns the indexes of tools in descending order of size.
func largest(tools []wire.Tool, size func(wire.Tool) int) []int {
	order := make([]int, len(tools))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(tools[b]), size(tools[a])) })
	return order
}

func toolsSize(tools []wire.Tool) int {
	sum := 0
	for _, t := range tools {
		sum += wire.ToolSize(t)
	}
	return sum
}

// marshalState encodes a state in at most limit bytes. An extension with thousands of instances first loses their
// reasons, then the instances in the worst states.
func marshalState(d *wire.StateDoc, limit int) ([]byte, error) {
	value, err := plainjson.Marshal(d)
	if err != nil || len(value) <= limit {
		return value, err
	}
	for n := range d.Instances {
		d.Instances[n].Reason = ""
	}
	slices.SortStableFunc(d.Instances, func(a, b wire.InstanceState) int {
		switch {
		case a.State.Better(b.State):
			return -1
		case b.State.Better(a.State):
			return 1
		}
		return 0
	})
	for {
		if value, err = plainjson.Marshal(d); err != nil || len(value) <= limit || len(d.Instances) == 0 {
			return value, err
		}
		d.Instances = d.Instances[:len(d.Instances)*9/10]
	}
}
