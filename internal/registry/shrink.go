package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// codeSchemaDropped is the diagnostic of a spec that did not fit.
const codeSchemaDropped = "schema_dropped"

// marshalSpec is the value of a spec of at most limit bytes. Where it does not fit, the largest schemas are
// replaced by {"type":"object"}; should that not suffice, other members of descriptors go too, and at last tools.
func marshalSpec(s *mesh.Spec, limit int) ([]byte, error) {
	value, err := plainjson.Marshal(s)
	if err != nil || len(value) <= limit {
		return value, err
	}
	s.Tools = slices.Clone(s.Tools)
	note := func(format string, args ...any) {
		s.Diagnostics = append(s.Diagnostics, mesh.Diagnostic{Level: "warn", Code: codeSchemaDropped,
			Message: fmt.Sprintf(format, args...) + fmt.Sprintf(": the spec is over the limit of %d bytes", limit)})
	}
	over := len(value) - limit + 1024 // room for the notes
	dropped := 0
	for _, n := range largest(s.Tools, func(t mesh.Tool) int { return len(t.InputSchema) }) {
		saved := len(s.Tools[n].InputSchema) - len(mesh.EmptySchema)
		if over <= 0 || saved <= 0 {
			break
		}
		s.Tools[n].InputSchema = mesh.EmptySchema
		over -= saved
		dropped++
	}
	note(`the schemas of %d of %d tools are shown as {"type":"object"}`, dropped, len(s.Tools))
	if over > 0 {
		for n := range s.Tools {
			over -= extraSize(s.Tools[n])
			s.Tools[n].Extra = nil
		}
		note("the descriptors' other members are left out")
	}
	if value, err = plainjson.Marshal(s); err != nil || len(value) <= limit {
		return value, err
	}
	all := len(s.Tools)
	for len(value) > limit && len(s.Tools) > 0 {
		s.Tools = s.Tools[:len(s.Tools)*9/10]
		if value, err = plainjson.Marshal(s); err != nil {
			return nil, err
		}
	}
	note("%d of %d tools are left out", all-len(s.Tools), all)
	return plainjson.Marshal(s)
}

// largest is the indexes of tools in falling order of size.
func largest(tools []mesh.Tool, size func(mesh.Tool) int) []int {
	order := make([]int, len(tools))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(tools[b]), size(tools[a])) })
	return order
}

func extraSize(t mesh.Tool) int {
	sum := 0
	for _, m := range t.Extra {
		sum += len(m.Key) + len(m.Value) + 4
	}
	return sum
}

// marshalState is the value of a state of at most limit bytes. An extension with thousands of instances loses their
// reasons first, then those instances that are in the worst states.
func marshalState(d *mesh.StateDoc, limit int) ([]byte, error) {
	value, err := plainjson.Marshal(d)
	if err != nil || len(value) <= limit {
		return value, err
	}
	for n := range d.Instances {
		d.Instances[n].Reason = ""
	}
	slices.SortStableFunc(d.Instances, func(a, b mesh.InstanceState) int {
		return btoi(b.State.Better(a.State)) - btoi(a.State.Better(b.State))
	})
	for {
		if value, err = plainjson.Marshal(d); err != nil || len(value) <= limit || len(d.Instances) == 0 {
			return value, err
		}
		d.Instances = d.Instances[:len(d.Instances)*9/10]
	}
}
