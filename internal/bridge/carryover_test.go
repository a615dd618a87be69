package bridge

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestCarryOver makes a plan after a search that was incomplete or found broken manifests.
func TestCarryOver(t *testing.T) {
	there := filepath.Join(t.TempDir(), "plugin.toml")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	desk := filepath.Join(t.TempDir(), "plugin.toml")
	if err := os.WriteFile(desk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(t.TempDir(), "plugin.toml")
	old := func(id, parent, path string) *workload {
		return &workload{announce: wire.Announce{ID: id, Parent: parent}, path: path}
	}
	before := plan{
		workloads: []*workload{
			old("found", "", there), old("missing", "", there), old("gone", "", gone), old("off", "", there), old("off.member", "off", there),
			old("broken", "", "/broken/plugin.toml"),
			old("override", "", "/broken/plugin.toml"), old("desk.files", "desk", desk), old("desk", "", desk),
			old("removed.invalid", "removed", "/other/plugin.toml"), old("removed.member", "removed", "/other/plugin.toml"),
		},
		declared: []declaration{
			{there, wire.Announce{ID: "service"}}, {gone, wire.Announce{ID: "ended"}}, {"/broken/plugin.toml", wire.Announce{ID: "torn"}},
		},
	}
	for _, tt := range []struct {
		name       string
		incomplete bool
		set        func(*config.Config)
		want       []string
		declared   int
	}{
		{"complete", false, nil, []string{"found", "broken", "override", "desk.files", "removed.invalid"}, 1},
		{"cut short", true, nil, []string{"found", "missing", "broken", "override", "desk.files", "desk", "removed.invalid"}, 2},
		{"incomplete, and only found is allowed", true, func(c *config.Config) { c.Allowlist = []string{"found"} }, []string{"found", "override", "override.new"}, 0},
		{"incomplete, and all are disabled", true, func(c *config.Config) { c.Enabled = false }, []string{"found", "override", "override.new"}, 0},
		{"the broken one is disabled", false, func(c *config.Config) { c.Disabled = append(c.Disabled, "broken", "torn") }, []string{"found", "override", "desk.files", "removed.invalid"}, 0},
		{"the broken one has a reserved id", false, func(c *config.Config) { c.ReservedIDs = []string{"broken"} }, []string{"found", "override", "desk.files", "removed.invalid"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			settings := config.Default()
			settings.Disabled = []string{"off"}
			if tt.set != nil {
				tt.set(&settings)
			}
			planner := newPlanner(Config{Settings: settings}.withDefaults())
			p := plan{incomplete: tt.incomplete, torn: map[string]bool{filepath.Dir(desk): true}}
			p.workloads = []*workload{
				old("found", "", there),
				// A copy of an extension that was hidden by another one, which is broken now.
				old("override", "", "/copy/plugin.toml"), old("override.new", "override", "/copy/plugin.toml"),
			}
			if tt.set == nil { // inside an extension that is broken now
				p.workloads = append(p.workloads, old("inner", "", "/broken/examples/inner/plugin.toml"))
				p.declared = append(p.declared, declaration{"/broken/examples/service/plugin.toml", wire.Announce{ID: "inner-service"}})
			}
			p.problems = []wire.HostProblem{
				{Path: "/broken/plugin.toml", Kind: "invalid"},
				{Path: "/other/plugin.toml", ID: "removed.invalid", Kind: "invalid"}, // a member of the manifest is gone
				{Path: "/other/plugin.toml", ID: "removed.gated", Kind: "gated"},
			}
			planner.carryOver(&p, before)
			var got []string
			for _, w := range p.workloads {
				got = append(got, w.id())
			}
			if !slices.Equal(got, tt.want) || len(p.declared) != tt.declared {
				t.Errorf("the plan has %q and %d declarations, want %q and %d", got, len(p.declared), tt.want, tt.declared)
			}
		})
	}
}
