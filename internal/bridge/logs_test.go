package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

func newRing(lines ...string) *ring {
	r := &ring{}
	for _, l := range lines {
		r.add(Line{Text: l})
	}
	return r
}

// TestRing: the ring keeps the last lines within both limits.
func TestRing(t *testing.T) {
	var many []string
	for i := range 3*ringLines + 7 {
		many = append(many, fmt.Sprint(i))
	}
	large := strings.Repeat("x", ringBytes/4)
	for _, tt := range []struct {
		name  string
		lines []string
		n     int
		want  []string
	}{
		{"none", nil, 0, nil},
		{"all", []string{"a", "b"}, 0, []string{"a", "b"}},
		{"the last", []string{"a", "b", "c"}, 2, []string{"b", "c"}},
		{"more than there are", []string{"a"}, 5, []string{"a"}},
		{"too many", many, 0, many[len(many)-ringLines:]},
		{"too large together", []string{"a", large, large, large, large}, 0, []string{large, large, large, large}},
		{"one that is too large", []string{"a", strings.Repeat("x", ringBytes+1)}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRing(tt.lines...)
			var got []string
			for _, l := range r.last(tt.n) {
				got = append(got, l.Text)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%d lines are kept, want %d", len(got), len(tt.want))
			}
			if r.bytes != len(strings.Join(r.texts(), "")) {
				t.Errorf("it counts %d bytes", r.bytes)
			}
		})
	}
}

func (r *ring) texts() (all []string) {
	for _, l := range r.last(0) {
		all = append(all, l.Text)
	}
	return all
}

// TestLogs: the response fits in a message, whatever the size of the encoded lines, and each instance has its share.
func TestLogs(t *testing.T) {
	t.Parallel()
	node := serve.NewPublisher(nil, serve.PublisherOptions{Prefix: wire.DefaultPrefix})
	newTalker := func(r *ring) *instance {
		a := wire.Announce{ID: "talker", Version: "1.0.0"}
		return &instance{workload: &workload{announce: a}, mesh: node.Join(a), output: output{lines: r}}
	}
	var chatty, colours []string
	for range ringLines {
		chatty = append(chatty, strings.Repeat("<td>x</td>", 80))
		colours = append(colours, strings.Repeat("\x1b[32mok\x1b[0m ", 40))
	}
	quiet := newTalker(newRing("first", "last"))
	for _, tt := range []struct {
		name      string
		instances []*instance
		n         int
		least     int // lines
	}{
		{"nothing", []*instance{newTalker(newRing())}, 0, 0},
		{"all of a few", []*instance{quiet}, 0, 2},
		{"the last one", []*instance{quiet}, 1, 1},
		{"markup", []*instance{newTalker(newRing(chatty...))}, 0, 100},
		{"colours", []*instance{newTalker(newRing(colours...))}, 0, 100},
		{"a quiet one with two others", []*instance{newTalker(newRing(chatty...)), newTalker(newRing(colours...)), quiet}, 0, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := logs(tt.instances, tt.n)
			if err != nil || len(text) > maxLogs+100 {
				t.Fatalf("%d bytes, %v", len(text), err)
			}
			var got struct {
				Lines []struct{ Instance, Line string }
			}
			if err := json.Unmarshal(text, &got); err != nil || len(got.Lines) < tt.least {
				t.Fatalf("%d lines, %v", len(got.Lines), err)
			}
			if tt.least == 0 {
				return
			}
			s := tt.instances[len(tt.instances)-1]
			kept := s.lines.last(1)[0].Text
			if !slices.ContainsFunc(got.Lines, func(l struct{ Instance, Line string }) bool {
				return l.Instance == s.mesh.Instance() && l.Line == kept
			}) {
				t.Errorf("the last line of the last instance is missing")
			}
		})
	}
}
