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
	"github.com/extmesh/extmesh/internal/health"
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

// TestWhichRegistryLeads: the holder in the lease leads only if its heartbeats say so. Without JetStream, the lease stays as it was
// read last.
func TestWhichRegistryLeads(t *testing.T) {
	a, b, c := registry.Replica{Name: "a"}, registry.Replica{Name: "b"}, registry.Replica{Name: "c"}
	leading := registry.Replica{Name: "a", Leading: true}
	for _, tt := range []struct {
		replicas []registry.Replica
		want     string
	}{
		{[]registry.Replica{leading}, "a leads, no standby"},
		{[]registry.Replica{b, leading}, "a leads, standby b"},
		{[]registry.Replica{leading, b, c}, "a leads, standbys b, c"},
		{[]registry.Replica{a, b}, "none leads; running: a, b"},
		{[]registry.Replica{a}, "none leads; running: a"},
		{nil, "none leads"},
	} {
		if got := (&registryJSON{Leader: "a", Replicas: tt.replicas}).String(); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.replicas, got, tt.want)
		}
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
		v := health.View{Registry: lead, Hosts: []wire.Host{{Bridge: "web-7", State: heartbeat.Lost, Reason: "does not answer", StateSince: time.Now().Add(-13 * time.Second), Extensions: make([]string, 6)}}}
		v.Extensions = []health.Extension{{ID: "weather", State: heartbeat.Failed, Tools: 604, Instances: []wire.InstanceState{{Bridge: "web-2", State: heartbeat.Failed, Reason: "exit status 3"}}}}
		for range 39 {
			v.Hosts = append(v.Hosts, wire.Host{State: heartbeat.Ready})
		}
		for range 117 {
			v.Extensions = append(v.Extensions, health.Extension{State: heartbeat.Ready, Available: true})
		}
		second := int64(1000)
		st := statusJSON{Mesh: meshJSON{Prefix: "ext", Server: "nats://nats-0:4222", User: "operator", From: "the selected nats context fleet"}, revisionJSON: revisionJSON{AgeMS: &second}, Problems: v.Problems()}
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
