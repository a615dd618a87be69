package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adrg/xdg"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestWhichMesh: with a running extctl up and a selected context, status and the verbs that change a mesh state which one
// they use.
func TestWhichMesh(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"XDG_DATA_HOME": dir, "XDG_CONFIG_HOME": dir, "NATS_URL": ""} {
		t.Setenv(name, value)
	}
	xdg.Reload()
	t.Cleanup(xdg.Reload)
	contexts := filepath.Join(dir, "nats", "context")
	if err := errors.Join(os.MkdirAll(contexts, 0o700), os.WriteFile(filepath.Join(contexts, "fleet.json"), []byte(`{"url":"nats://fleet:4222"}`), 0o600),
		os.WriteFile(filepath.Join(dir, "nats", "context.txt"), []byte("fleet"), 0o600)); err != nil {
		t.Fatal(err)
	}
	srv, err := natsd.Start(natsd.Config{StoreDir: daemon.StoreDir(""), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	here := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = run(t.Context(), args, nil, &out, &errs, os.Getenv)
		return code, out.String(), errs.String()
	}
	const which = " (from the running extctl up), not the selected nats context fleet\n"
	if code, stdout, stderr := here("status"); code != exitNoNATS || !strings.Contains(stdout, which) {
		t.Errorf("status: exit code %d, %s%s", code, stdout, stderr)
	}
	if _, _, stderr := here("drain", "x"); !strings.HasPrefix(stderr, "extctl: on ext on nats://127.0.0.1:") || !strings.Contains(stderr, which) {
		t.Errorf("drain: %s", stderr)
	}
	if _, _, stderr := here("drain", "x", "--server", srv.ClientURL()); strings.Contains(stderr, "extctl: on") {
		t.Errorf("drain with --server: %s", stderr)
	}
}

// TestStatusWithoutRegistry: a user that may only read the catalog gets a status, too.
func TestStatusWithoutRegistry(t *testing.T) {
	t.Parallel()
	b, _ := bedWithUsers(t, server.User{Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.registry.rpc"}}}})
	b.putExtension(t, "x", "b1")
	code, stdout, stderr := extctl(t.Context(), b.url, "status", "--timeout", "2m")
	if !strings.Contains(stdout, "as op (from --server)\nRegistry:    this user may not send requests to it; the catalog is ") || !strings.Contains(stdout, "Extensions:  1 ready; 0 tools") ||
		code != exitOK && !strings.Contains(stdout, "no registry leads") { // a slow machine lets the catalog grow old
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// TestStatusOnThePage: docs/operations.md shows what status prints.
func TestStatusOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // the clock does not move
		lead := &registry.Status{Name: "registry-0", Leader: "registry-0", JetStream: "ok", Replicas: []registry.Replica{{Name: "registry-0", Leading: true}, {Name: "registry-1"}}}
		v := view{registry: lead, hosts: []wire.Host{{Bridge: "web-7", State: heartbeat.Lost, Reason: "does not answer", StateSince: time.Now().Add(-13 * time.Second), Extensions: make([]string, 6)}}}
		v.extensions = []extensionJSON{{ID: "weather", State: heartbeat.Failed, Tools: 604, Instances: []wire.InstanceState{{Bridge: "web-2", State: heartbeat.Failed, Reason: "exit status 3"}}}}
		for range 39 {
			v.hosts = append(v.hosts, wire.Host{State: heartbeat.Ready})
		}
		for range 117 {
			v.extensions = append(v.extensions, extensionJSON{State: heartbeat.Ready, Available: true})
		}
		second := int64(1000)
		st := statusJSON{Mesh: meshJSON{Prefix: "ext", Server: "nats://nats-0:4222", User: "operator", From: "the selected nats context fleet"}, revisionJSON: revisionJSON{AgeMS: &second}, Problems: v.problems()}
		st.count(v)
		var out bytes.Buffer
		if err := st.printText(&app{stdout: &out, getenv: func(string) string { return "" }}, false); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(page, out.Bytes()) {
			t.Errorf("the page does not have:\n%s", &out)
		}
	})
}

// TestProblems: what status reports of a mesh, most severe first.
func TestProblems(t *testing.T) {
	at := func(bridge string, state heartbeat.State, reason string) wire.InstanceState {
		return wire.InstanceState{Instance: "i", Bridge: bridge, State: state, Reason: reason}
	}
	ext := func(id string, available bool, instances ...wire.InstanceState) extensionJSON {
		state := heartbeat.Shutdown
		for _, i := range instances {
			if i.State.Better(state) {
				state = i.State
			}
		}
		return extensionJSON{ID: id, Available: available, State: state, Instances: instances}
	}
	lead := &registry.Status{Name: "r1", JetStream: "ok"}
	lost := wire.Host{Bridge: "b2", State: heartbeat.Lost, Reason: "does not answer"}
	for _, tt := range []struct {
		what string
		v    view
		want string // level kind name: message > command
	}{
		{"nothing", view{registry: lead, extensions: []extensionJSON{ext("a", true, at("b1", "ready", "")), ext("stopped", false, at("b1", "shutdown", ""))}}, ""},
		{"no leader", view{registry: lead, age: time.Minute}, "error registry registry: no registry leads; the catalog is 1m0s old and is not updated. Calls still work > extctl show registry"},
		{"no registry", view{server: "nats://h:1", age: time.Second}, "error registry registry: no registry answers > registry --server nats://h:1"},
		{"no JetStream", view{registry: &registry.Status{Name: "r1", JetStream: "not enabled"}}, "error registry registry: the registry r1 cannot use JetStream: not enabled > extctl show registry"},
		{"a refused message", view{registry: &registry.Status{JetStream: "ok", Recent: []registry.Refusal{{What: "announce", ID: "x", Reason: "too large", Last: time.Now()}}}},
			"warn refused x: the registry refused a message 0s ago: announce of x: too large > extctl show registry"},
		{"an old refusal", view{registry: &registry.Status{JetStream: "ok", Recent: []registry.Refusal{{Last: time.Now().Add(-time.Hour)}}}}, ""},
		{"instances on a lost bridge are one problem", view{registry: lead, hosts: []wire.Host{lost}, extensions: []extensionJSON{
			ext("a", true, at("b1", "ready", ""), at("b2", "lost", "gone")), ext("b", false, at("b2", "lost", "gone"))}},
			"error bridge b2: the bridge b2 is lost: it does not answer > extctl list --bridge b2\nerror extension b: b is lost on b2: gone > extctl show b"},
		{"states of one extension", view{registry: lead, extensions: []extensionJSON{ext("a", true, at("b1", "ready", ""), at("b1", "restarting", "exit status 1"), at("b2", "failed", "exit status 3"), at("b3", "failed", ""))}},
			"error extension a: a can be called, but not all its instances: 2 failed on b2, b3: exit status 3; 1 restarting on b1: exit status 1 > extctl show a"},
		{"in transition", view{registry: lead, extensions: []extensionJSON{ext("a", false, at("b1", "draining", "")), ext("b", true, at("b1", "ready", ""), at("b2", "spawning", ""))}},
			"warn extension a: a is draining on b1 > extctl undrain a\nwarn extension b: b can be called, but not all its instances: 1 spawning on b2 > extctl show b"},
		{"gated", view{registry: lead, hosts: []wire.Host{{Bridge: "b1", Problems: []wire.HostProblem{{ID: "a", Kind: "gated", Message: "missing bin: x"}}}},
			extensions: []extensionJSON{ext("a", false, at("b1", "gated", "missing bin: x"))}}, "error extension a: a is gated on b1: missing bin: x > extctl hosts --problems --bridge b1"},
		{"gated on one of two hosts", view{registry: lead, hosts: []wire.Host{{Bridge: "b1", Problems: []wire.HostProblem{{ID: "a", Kind: "gated", Message: "missing bin: x"}}}},
			extensions: []extensionJSON{ext("a", true, at("b2", "ready", ""))}}, "warn manifest b1: the bridge b1 could not start 1 extension; a: missing bin: x > extctl hosts --bridge b1"},
		{"manifests", view{registry: lead, hosts: []wire.Host{{Bridge: "b1", ProblemsLeftOut: 7, Problems: []wire.HostProblem{{Path: "/a/plugin.toml", Kind: "invalid", Message: "no id"}, {Path: "/a/plugin.toml", Kind: "invalid", Message: "no version"}, {ID: "b", Kind: "gated"}}}}},
			"error manifest b1: the bridge b1 could not start 9 extensions; /a/plugin.toml: no id > extctl hosts --bridge b1"},
	} {
		var got []string
		for _, p := range tt.v.problems() {
			got = append(got, p.Level+" "+p.Kind+" "+p.Name+": "+p.Message+" > "+p.Command)
		}
		if strings.Join(got, "\n") != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.what, strings.Join(got, "\n"), tt.want)
		}
	}
}
