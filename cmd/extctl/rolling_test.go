package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// fakeFleet are bridges whose instances of one extension restart when they are told to: the first status after a restart
// shows the instance as draining or restarting, the next one as ready, or as failed if it is broken. It writes the catalog, as
// a registry does.
type fakeFleet struct {
	bed    *bed
	id     string
	broken string // the instance that does not come back

	shown   heartbeat.State // of the extension, if it is not ready
	failing int             // number of the next status requests after a restart that fail; guarded by mu

	mu        sync.Mutex
	instances []wire.InstanceState
	asked     []string // restarts, in order, each with the states of all at that time
	restarted map[string]int
}

func newFakeFleet(t *testing.T, b *bed, id string, instances ...wire.InstanceState) *fakeFleet {
	t.Helper()
	f := &fakeFleet{bed: b, id: id, instances: instances, restarted: map[string]int{}}
	bridges := map[string]bool{}
	for _, i := range instances {
		if bridges[i.Bridge] || i.State == heartbeat.Lost {
			continue
		}
		bridges[i.Bridge] = true
		if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control(i.Bridge), func(method string, params json.RawMessage) (string, *rpc.Error) {
			return f.handle(i.Bridge, method, params)
		}); err != nil {
			t.Fatal(err)
		}
	}
	f.write()
	return f
}

// write puts the state into the catalog. An error is one of a server that has stopped.
func (f *fakeFleet) write() {
	doc := wire.StateDoc{State: cmp.Or(f.shown, heartbeat.Ready), Available: true, Instances: f.instances}
	if data, err := json.Marshal(doc); err == nil {
		_, _ = f.bed.kv.Put(context.Background(), "state."+f.id, data)
	}
}

// requests returns the requests so far, and forgets them.
func (f *fakeFleet) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func (f *fakeFleet) setBroken(instance string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = instance
}

func (f *fakeFleet) handle(bridge, method string, params json.RawMessage) (string, *rpc.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var p struct {
		ID, Instance string
		DrainMS      int `json:"drain_ms"`
	}
	_ = json.Unmarshal(params, &p)
	switch method {
	case "restart", "drain":
		return f.operate(bridge, method, p.Instance, p.DrainMS > 0), nil
	case "status":
		if len(f.restarted) > 0 && f.failing > 0 {
			f.failing--
			return "", rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "not now")
		}
		return f.status(bridge, p.Instance), nil
	}
	return "", rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %s", method)
}

func (f *fakeFleet) operate(bridge, method, instance string, drains bool) string {
	var named []string
	var states []string
	for n := range f.instances {
		i := &f.instances[n]
		if i.Bridge != bridge || instance != "" && i.Instance != instance {
			states = append(states, string(i.State))
			continue
		}
		named = append(named, i.Instance)
		i.Reason = ""
		switch {
		case method == "drain":
			i.State, i.Reason = heartbeat.Draining, "drain requested"
		case drains:
			i.State, i.Restarts = heartbeat.Draining, i.Restarts+1
		default:
			i.State, i.Restarts = heartbeat.Restarting, i.Restarts+1
		}
		f.restarted[i.Instance] = 0
		states = append(states, "*"+string(i.State))
	}
	f.asked = append(f.asked, method+" "+strings.Join(states, " "))
	f.write()
	text, err := json.Marshal(operated{named})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (f *fakeFleet) status(bridge, instance string) string {
	var out []string
	for n := range f.instances {
		i := &f.instances[n]
		if i.Bridge != bridge || instance != "" && i.Instance != instance {
			continue
		}
		if count, ok := f.restarted[i.Instance]; ok && i.Reason != "drain requested" {
			if f.restarted[i.Instance]++; count > 0 {
				i.State = heartbeat.Ready
				if i.Instance == f.broken {
					i.State, i.Reason = heartbeat.Failed, "exit status 3"
				}
				delete(f.restarted, i.Instance)
				f.write()
			}
		}
		out = append(out, fmt.Sprintf(`{"id":%q,"instance":%q,"state":%q,"reason":%q}`, f.id, i.Instance, i.State, i.Reason))
	}
	return `{"bridge":"` + bridge + `","instances":[` + strings.Join(out, ",") + `]}`
}

// fourInstances are two instances on each of two bridges.
func fourInstances() []wire.InstanceState {
	var out []wire.InstanceState
	for _, name := range []string{"b1-x", "b1-y", "b2-x", "b2-y"} {
		out = append(out, wire.InstanceState{Instance: name, Bridge: name[:2], State: heartbeat.Ready})
	}
	return out
}

// TestRestartRolls: restart takes one instance at a time, drained first while another one is ready.
func TestRestartRolls(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", fourInstances()...)
	code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x")
	if want := []string{"b1/1: restarting … ready after ", "b1/2: ", "b2/1: ", "b2/2: "}; code != 0 || stderr != "" || !hasLines(stdout, want) || !strings.HasSuffix(stdout, "(4/4)\n") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if got, want := f.requests(), []string{
		"restart *draining ready ready ready", "restart ready *draining ready ready",
		"restart ready ready *draining ready", "restart ready ready ready *draining",
	}; !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}

	// One of them, with --json.
	code, stdout, _ = extctl(t.Context(), b.url, "restart", "x", "--instance", "b2/1", "--json")
	if got := f.requests(); code != 0 || !strings.Contains(stdout, `"bridges":[{"bridge":"b2","result":{"instances":["b2-x"]}}]`) || !slices.Equal(got, []string{"restart ready ready *draining ready"}) {
		t.Errorf("exit code %d, %s%q", code, stdout, got)
	}
	code, stdout, stderr = extctl(t.Context(), b.url, "restart", "x", "--at-once")
	if got := f.requests(); code != 0 || stdout != "b1: restarting 2 instances\nb2: restarting 2 instances\n" || len(got) != 2 {
		t.Errorf("exit code %d, %s%s%q", code, stdout, stderr, got)
	}
}

func hasLines(text string, starts []string) bool {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return slices.EqualFunc(lines, starts, strings.HasPrefix)
}

// TestRestartStops: restart takes instances that are not ready first, leaves gated ones alone, and ends at the first that does
// not come back, without touching the others.
func TestRestartStops(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	instances := fourInstances()
	instances[0].State, instances[0].Reason = heartbeat.Gated, "python3 is missing"
	instances[3].State = heartbeat.Failed
	f := newFakeFleet(t, b, "x", instances...)
	f.setBroken("b1-y")
	code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x")
	if code != exitUnavailable || !hasLines(stdout, []string{"b2/2: restarting … ready", "b1/2: restarting … failed"}) {
		t.Errorf("exit code %d, %s", code, stdout)
	}
	for _, want := range []string{
		"b1/1 is not started, because a requirement is missing: python3 is missing\n",
		"error: b1/2 did not come back: it is failed (exit status 3); 1 of 3 instances were restarted, the others were not touched\n",
		"hint: extctl logs x --bridge b1 shows its output; after a fix, extctl restart x begins with the instances that are not ready\n",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr is %q, want %q", stderr, want)
		}
	}
	if got, want := f.requests(), []string{"restart gated ready ready *draining", "restart gated *draining ready ready"}; !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}
	code, stdout, _ = extctl(t.Context(), b.url, "restart", "x", "--json", "--bridge", "b1")
	out := decodeOutput(t, stdout)
	data, _ := json.Marshal(out.Error)
	if code != exitUnavailable || !strings.Contains(string(data), `"state":"failed"`) || !strings.Contains(string(data), `"left":[]`) {
		t.Errorf("exit code %d, %s", code, stdout)
	}
	// An instance that does not come back in time.
	f.setBroken("")
	if code, _, stderr := extctl(t.Context(), b.url, "restart", "x", "--instance", "b2-x", "--instance-timeout", "1ns"); code != exitTimeout {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code, _, stderr := extctl(t.Context(), b.url, "restart", "x", "--instance-timeout", "0s"); code != exitUsage || !strings.Contains(stderr, "--instance-timeout 0s: want a positive duration") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestDrainAndUndrain: the last ready instances are drained only with --yes, and undrain restarts those that are drained.
func TestDrainAndUndrain(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", fourInstances()...)
	for _, name := range []string{"b1", "b2"} {
		b.putHost(t, wire.Host{Bridge: name, Host: "host-" + name, State: heartbeat.Ready})
	}
	for _, step := range []struct {
		line   string
		code   int
		stdout string
		stderr string
	}{
		{"drain x", exitNeedsYes, "", "error: no other instance of x is ready: calls would fail until extctl undrain x\nextctl: hint: to do it anyway: extctl drain x --yes\n"},
		{"drain x --bridge b1", 0, "b1: draining 2 instances\n", ""},
		{"drain x --bridge b2", exitNeedsYes, "", "extctl drain x --bridge b2 --yes\n"},
		{"drain --host b2", exitNeedsYes, "", "extctl drain --host b2 --yes\n"},
		{"drain --host host-b2 --yes", 0, "b2: draining 2 instances\n", ""},
		{"drain --host lunch", exitNotFound, "", `no bridge and no host is named "lunch"`},
		{"drain --host b3", exitNotFound, "", "did you mean b1"},
		{"drain", exitUsage, "", "want an extension, or a host: extctl drain ID, or extctl drain --host NAME"},
		{"drain x --host b1", exitUsage, "", "for one extension there: extctl drain ID --bridge b1"},
		{"undrain x --instance b1/2", 0, "b1/2: x is ready after ", ""},
		{"undrain --host b1", 0, "b1/1: x is ready after ", ""},
		{"undrain --host b1", 0, "", "--host b1 has no drained instances\n"},
		{"undrain x", 0, "b2/1: x is ready after ", ""},
		{"undrain x --instance b9/1", exitNotFound, "", "no such instance of x"},
		{"undrain x --instance b1/3", exitNotFound, "", "bridge b1 runs 2 instances of x, so there is no \"b1/3\""},
		{"undrain x --instance b1/one", exitUsage, "", "want BRIDGE/N with a number from 1"},
		{"undrain x --instance b1", exitAmbiguous, "", "2 instances of x have a name that begins or ends with b1; give its bridge and number, such as b1/1"},
		{"undrain nobody", exitNotFound, "", `no extension has the id "nobody"`},
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(step.line)...)
		if code != step.code || !strings.HasPrefix(stdout, step.stdout) || !strings.Contains(stderr, step.stderr) || step.stderr == "" && stderr != "" {
			t.Errorf("%s: exit code %d, %q, %q", step.line, code, stdout, stderr)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	states := map[heartbeat.State]int{}
	for _, i := range f.instances {
		states[i.State]++
	}
	if want := map[heartbeat.State]int{heartbeat.Ready: 4}; !reflect.DeepEqual(states, want) {
		t.Errorf("at the end: %v", states)
	}
}

// TestLogsOfAnInstance: logs accepts the same names of an instance as the other commands, also for new lines.
func TestLogsOfAnInstance(t *testing.T) {
	t.Parallel()
	line := logLine{ID: "x", Bridge: "b1", Replica: 2, Instance: "Zn4VWzX9kAEVgcTNtpHBoU"}
	for _, tt := range []struct {
		instance string
		want     bool
	}{
		{"", true}, {"b1/2", true}, {"Zn4VWzX9kAEVgcTNtpHBoU", true}, {"HBoU", true}, {"Zn4V", true},
		{"b1/1", false}, {"b2/2", false}, {"kAEV", false},
	} {
		s := selection{logsFlags: logsFlags{bridgeFlags: bridgeFlags{instance: tt.instance}}, ids: []string{"x"}}
		if got := s.wants(line); got != tt.want {
			t.Errorf("--instance %q: the line is wanted: %v", tt.instance, got)
		}
	}
	s := selection{logsFlags: logsFlags{bridgeFlags: bridgeFlags{instance: "b1/2"}}, ids: []string{"x"}}
	if line.ID = "x.member"; s.wants(line) {
		t.Error("the number of an instance is also that of a member's")
	}
}

// TestLastReady: an instance that refuses calls does not take the place of one that is drained.
func TestLastReady(t *testing.T) {
	open := &heartbeat.Breaker{State: heartbeat.BreakerOpen}
	a, b := wire.InstanceState{Instance: "a", State: heartbeat.Ready}, wire.InstanceState{Instance: "b", State: heartbeat.Ready}
	cut, lost := b, b
	cut.Breaker, lost.State = open, heartbeat.Lost
	for name, tt := range map[string]struct {
		all  []wire.InstanceState
		want bool
	}{
		"another one is ready": {[]wire.InstanceState{a, b}, false}, "it is cut off": {[]wire.InstanceState{a, cut}, true},
		"it is lost": {[]wire.InstanceState{lost, a}, true}, "none is ready": {[]wire.InstanceState{lost}, false},
	} {
		if got := lastReady(tt.all, func(i wire.InstanceState) bool { return i.Instance == "a" }); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRestartWithReconnects: polls that fail for a while do not end a rolling restart.
func TestRestartWithReconnects(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", wire.InstanceState{Instance: "one", Bridge: "b1", State: heartbeat.Ready}, wire.InstanceState{Instance: "two", Bridge: "b2", State: heartbeat.Ready})
	f.failing = 2
	if code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x"); code != 0 || strings.Count(stdout, "ready after") != 2 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// TestRestartWaitJSON: if the wait fails, the error is the only object.
func TestRestartWaitJSON(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	f := newFakeFleet(t, b, "x", wire.InstanceState{Instance: "one", Bridge: "b1", State: heartbeat.Ready}, wire.InstanceState{Instance: "two", Bridge: "b2", State: heartbeat.Ready})
	f.shown = heartbeat.Spawning // and never ready
	if !withTimeouts(func(timeout string) bool {
		code, stdout, stderr := extctl(t.Context(), b.url, "restart", "x", "--wait", "--json", "--timeout", timeout)
		if code == exitOK || strings.Count(stdout, "\n") > 1 || !json.Valid([]byte(stdout)) {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
		return code == exitTimeout && len(f.requests()) == 2 // it was waiting
	}) {
		t.Error("it does not wait")
	}
}
