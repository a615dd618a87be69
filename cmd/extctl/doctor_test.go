package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// runtimeCheck runs doctor --runtime --json over manifests and returns its results by id.
func runtimeCheck(t *testing.T, url string, wantCode int, manifests map[string]string, args ...string) map[string]doctor.Result {
	t.Helper()
	args = append([]string{"doctor", "--runtime", "--json", "--state-dir", t.TempDir(), extensionDir(t, manifests)}, args...)
	code, stdout, stderr := extctl(t.Context(), url, args...)
	if code != wantCode {
		t.Fatalf("exit code %d, want %d\n%s%s", code, wantCode, stdout, stderr)
	}
	var out struct{ Results []doctor.Result }
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	results := map[string]doctor.Result{}
	for _, r := range out.Results {
		results[r.ID] = r
	}
	return results
}

func expect(t *testing.T, r doctor.Result, outcome, text string) {
	t.Helper()
	if r.Outcome != outcome || !strings.Contains(r.Error+r.Detail, text) {
		t.Errorf("%s: %s %q %q, want %s and %q", r.ID, r.Outcome, r.Error, r.Detail, outcome, text)
	}
}

func natsManifest(id string) string {
	return fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"nats\"\nsubject_prefix = \"other\"\n", id)
}

func TestDoctorHeartbeats(t *testing.T) {
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	// Publish heartbeats until the test ends: it is not known when doctor subscribes.
	beats := map[string]string{
		"alive":  `{"id":"alive","version":"1.2.3"}`,
		"failed": `{"id":"failed","state":"failed","reason":"out of memory"}`,
		"wrong":  `{"id":"another"}`,
		"broken": `not JSON`,
	}
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	ctx := t.Context()
	go func() { // ends with the test
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				for id, beat := range beats {
					if err := b.nc.Publish(wire.Prefix("ext").Heartbeat(id), []byte(beat)); err != nil {
						return
					}
				}
			}
		}
	}()
	r := runtimeCheck(t, b.url, exitOK, map[string]string{"alive": natsManifest("alive")}, "--timeout", "30s")
	expect(t, r["alive"], "ok", "ready 1.2.3")
	// These checks last until their timeout, and a heartbeat may arrive late.
	manifests := map[string]string{"silent": natsManifest("silent")}
	for _, id := range []string{"failed", "wrong", "broken"} {
		manifests[id] = natsManifest(id)
	}
	var limit string
	withTimeouts(func(timeout string) bool {
		limit = timeout
		r = runtimeCheck(t, b.url, exitRuntimeCheck, manifests, "--timeout", timeout)
		return !slices.ContainsFunc([]string{"failed", "wrong", "broken"}, func(id string) bool { return strings.Contains(r[id].Error, "no heartbeat on") })
	})
	expect(t, r["failed"], "fail", "state "+string(heartbeat.Failed)+" (out of memory)")
	expect(t, r["wrong"], "fail", `heartbeat of "another"`)
	expect(t, r["broken"], "fail", "invalid heartbeat")
	expect(t, r["silent"], "fail", "no heartbeat on ext.registry.heartbeat.silent within "+limit)
}

func TestDoctorHTTP(t *testing.T) {
	t.Setenv("DOCTOR_TEST_TOKEN", "hunter22hunter22")
	var heads, gets int
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer hunter22hunter22":
			w.WriteHeader(http.StatusInternalServerError)
		case r.Method == http.MethodHead:
			heads++
			w.WriteHeader(http.StatusInternalServerError)
		case r.Method == http.MethodGet:
			gets++
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	}))
	t.Cleanup(good.Close)
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	t.Cleanup(bad.Close)
	answers := func(status int) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	manifest := func(id, url string) string {
		return fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"http\"\nurl = %q\n"+
			"headers = { Authorization = \"Bearer ${DOCTOR_TEST_TOKEN}\" }\n", id, url)
	}
	r := runtimeCheck(t, "nats://127.0.0.1:1", exitRuntimeCheck, map[string]string{
		"good": manifest("good", good.URL), "bad": manifest("bad", bad.URL), "gone": manifest("gone", "http://127.0.0.1:1/"),
		"locked": manifest("locked", answers(401)), "nowhere": manifest("nowhere", answers(404)),
	})
	expect(t, r["good"], "ok", "reachable")
	expect(t, r["bad"], "fail", "502 Bad Gateway")
	expect(t, r["gone"], "fail", "127.0.0.1:1")
	expect(t, r["locked"], "fail", "401 Unauthorized")
	expect(t, r["nowhere"], "fail", "404 Not Found")
	if heads != 1 || gets != 1 {
		t.Errorf("%d HEAD and %d GET, want one of each", heads, gets)
	}
	for id, r := range r {
		if strings.Contains(r.Error+r.Detail, "hunter22") {
			t.Errorf("%s shows a secret: %+v", id, r)
		}
	}
}

// TestDoctorInParallel: doctor tests four extensions at a time, because each may be a process.
func TestDoctorInParallel(t *testing.T) {
	const most = 4
	var mu sync.Mutex
	var now, peak int
	full := make(chan struct{})
	opened := sync.OnceFunc(func() { close(full) })
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		if peak = max(peak, now); now == most {
			opened()
		}
		mu.Unlock()
		select {
		case <-full:
			<-time.After(50 * time.Millisecond) // time for a fifth request to arrive
		case <-r.Context().Done(): // fewer are tested at a time
		}
		mu.Lock()
		now--
		mu.Unlock()
	}))
	t.Cleanup(srv.Close)
	manifests := map[string]string{}
	for i := range 2 * most {
		id := fmt.Sprintf("e%d", i)
		manifests[id] = fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"http\"\nurl = %q\n", id, srv.URL)
	}
	for _, r := range runtimeCheck(t, "nats://127.0.0.1:1", exitOK, manifests) {
		expect(t, r, "ok", "reachable")
	}
	if peak != most {
		t.Errorf("%d were tested at a time, want %d", peak, most)
	}
}

// TestDoctorSecretsFlag: with --secrets, doctor applies the mode of a bridge that was started with that flag.
func TestDoctorSecretsFlag(t *testing.T) {
	t.Setenv("DOCTOR_TEST_TOKEN", "hunter22hunter22")
	dir := extensionDir(t, map[string]string{"a": "[plugin]\nid = \"a\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nenv = {TOKEN = \"${env:DOCTOR_TEST_TOKEN}\"}\n"})
	for mode, want := range map[string]string{"inherit": "1 ok", "granted": "not granted", "open": `"open" is not a mode`} {
		_, stdout, stderr := extctl(t.Context(), "nats://127.0.0.1:1", "doctor", "--search-path", dir, "--secrets", mode)
		if !strings.Contains(stdout+stderr, want) {
			t.Errorf("--secrets %s: %s%s", mode, stdout, stderr)
		}
	}
}
