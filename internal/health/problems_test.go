package health

import (
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestProblems: what status reports of a mesh, most severe first.
func TestProblems(t *testing.T) {
	at := func(bridge string, state heartbeat.State, reason string) wire.InstanceState {
		return wire.InstanceState{Instance: "i", Bridge: bridge, State: state, Reason: reason}
	}
	ext := func(id string, available bool, instances ...wire.InstanceState) Extension {
		state := heartbeat.Shutdown
		for _, i := range instances {
			if i.State.Better(state) {
				state = i.State
			}
		}
		return Extension{ID: id, Available: available, State: state, Instances: instances}
	}
	lead := &registry.Status{Name: "r1", JetStream: "ok"}
	lost := wire.Host{Bridge: "b2", State: heartbeat.Lost, Reason: "does not answer"}
	for _, tt := range []struct {
		what string
		v    View
		want string // level kind name: message > command
	}{
		{"nothing", View{Registry: lead, Extensions: []Extension{ext("a", true, at("b1", "ready", "")), ext("stopped", false, at("b1", "shutdown", ""))}}, ""},
		{"no leader", View{Registry: lead, Age: time.Minute}, "error registry registry: no registry leads; the catalog is 1m0s old and is not updated. Calls still work > extctl show registry"},
		{"no registry", View{Server: "nats://h:1", Age: time.Second}, "error registry registry: no registry answers > registry --server nats://h:1"},
		{"no JetStream", View{Registry: &registry.Status{Name: "r1", JetStream: "not enabled"}}, "error registry registry: the registry r1 cannot use JetStream: not enabled > extctl show registry"},
		{"two leaders", View{Registry: &registry.Status{JetStream: "ok", Replicas: []registry.Replica{{Name: "r1", Leading: true}, {Name: "r2", Leading: true}, {Name: "r3"}}}},
			"error registry registry: r1 and r2 lead at the same time: if this lasts, they use two JetStreams, for example that of a leaf node; connect all registries of a mesh to the same one > extctl show registry"},
		{"a refused message", View{Registry: &registry.Status{JetStream: "ok", Recent: []registry.Refusal{{What: "announce", ID: "x", Reason: "too large", Last: time.Now()}}}},
			"warn refused x: the registry refused a message 0s ago: announce of x: too large > extctl show registry"},
		{"an old refusal", View{Registry: &registry.Status{JetStream: "ok", Recent: []registry.Refusal{{Last: time.Now().Add(-time.Hour)}}}}, ""},
		{"instances on a lost bridge are one problem", View{Registry: lead, Hosts: []wire.Host{lost}, Extensions: []Extension{
			ext("a", true, at("b1", "ready", ""), at("b2", "lost", "gone")), ext("b", false, at("b2", "lost", "gone"))}},
			"error bridge b2: the bridge b2 is lost: it does not answer > extctl list --bridge b2\nerror extension b: b is lost on b2: gone > extctl show b"},
		{"a bridge that was stopped", View{Registry: lead, Hosts: []wire.Host{{Bridge: "b2", State: heartbeat.Lost, Reason: wire.ReasonStopped, Extensions: []string{"a"}}}},
			"warn bridge b2: the bridge b2 was stopped; it ran 1 extension > extctl list --bridge b2"},
		{"states of one extension", View{Registry: lead, Extensions: []Extension{ext("a", true, at("b1", "ready", ""), at("b1", "restarting", "exit status 1"), at("b2", "failed", "exit status 3"), at("b3", "failed", ""))}},
			"error extension a: a can be called, but not all its instances: 2 failed on b2, b3: exit status 3; 1 restarting on b1: exit status 1 > extctl show a"},
		{"no tools", View{Registry: lead, Extensions: []Extension{{ID: "a", Available: true, State: "ready", Instances: []wire.InstanceState{at("b1", "ready", "")},
			Diagnostics: []wire.Diagnostic{{Level: "warn", Code: "conflict", Message: "x"}, {Level: "error", Code: "no_tools", Message: "its tools cannot be listed"}}}}},
			"error extension a: a is ready, but: its tools cannot be listed > extctl show a"},
		{"in transition", View{Registry: lead, Extensions: []Extension{ext("a", false, at("b1", "draining", "drain requested")), ext("b", true, at("b1", "ready", ""), at("b2", "spawning", ""))}},
			"warn extension a: a is draining on b1: drain requested > extctl undrain a\nwarn extension b: b can be called, but not all its instances: 1 spawning on b2 > extctl show b"},
		{"a service that stops", View{Registry: lead, Extensions: []Extension{ext("a", false, at("", "draining", ""))}}, "warn extension a: a is draining > extctl show a"},
		{"gated", View{Registry: lead, Hosts: []wire.Host{{Bridge: "b1", Problems: []wire.HostProblem{{ID: "a", Kind: "gated", Message: "missing bin: x"}}}},
			Extensions: []Extension{ext("a", false, at("b1", "gated", "missing bin: x"))}}, "error extension a: a is gated on b1: missing bin: x > extctl hosts --problems --bridge b1"},
		{"gated on one of two hosts", View{Registry: lead, Hosts: []wire.Host{{Bridge: "b1", Problems: []wire.HostProblem{{ID: "a", Kind: "gated", Message: "missing bin: x"}}}},
			Extensions: []Extension{ext("a", true, at("b2", "ready", ""))}}, "warn manifest b1: the bridge b1 could not start 1 extension; a: missing bin: x > extctl hosts --bridge b1"},
		{"manifests", View{Registry: lead, Hosts: []wire.Host{{Bridge: "b1", ProblemsLeftOut: 7, Problems: []wire.HostProblem{{Path: "/a/plugin.toml", Kind: "invalid", Message: "no id"}, {Path: "/a/plugin.toml", Kind: "invalid", Message: "no version"}, {ID: "b", Kind: "gated"}}}}},
			"error manifest b1: the bridge b1 could not start 9 extensions; /a/plugin.toml: no id > extctl hosts --bridge b1"},
	} {
		var got []string
		for _, p := range tt.v.Problems() {
			got = append(got, p.Level+" "+p.Kind+" "+p.Name+": "+p.Message+" > "+p.Command)
		}
		if strings.Join(got, "\n") != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.what, strings.Join(got, "\n"), tt.want)
		}
	}
}

// TestAge: a catalog that nobody has written has no age.
func TestAge(t *testing.T) {
	for age, want := range map[time.Duration]string{
		(&mesh.Catalog{}).Age(): "is empty",
		90 * time.Second:        "is 1m30s old",
	} {
		if got := Age(age); got != want {
			t.Errorf("%v: %q, want %q", age, got, want)
		}
	}
}
