package door

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

var update = flag.Bool("update", false, "write the golden files")

// TestFailures compares the result of each kind of failure with testdata/failures.txt: a text that a model reads is only
// changed deliberately.
func TestFailures(t *testing.T) {
	now := time.Unix(10_000, 0)
	state := &mesh.StateDoc{State: "ready", Since: now.Add(-130 * time.Second)}
	spec := &mesh.Spec{ID: "playwright", Dialect: "mcp"}
	plain := &callee{name: "ext_playwright_click", id: "playwright", extension: mesh.Extension{ID: "playwright", Spec: spec, State: state}}
	safe := *plain
	yes := true
	safe.item = &item{hints: mcp.Annotations{ReadOnly: &yes}}
	made := func(code rpc.Code, d rpc.Details, message string) error { return rpc.NewError(code, d, "%s", message) }
	no, maybe := rpc.RanNo, rpc.RanMaybe
	absent := func(state, reason string) error {
		return made(rpc.CodeUnavailable, rpc.Details{Ran: no, State: state, Reason: reason}, "away")
	}
	var out strings.Builder
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"exited", made(rpc.CodeExited, rpc.Details{Ran: maybe, Status: "signal: killed"}, "gone")},
		{"silent", made(rpc.CodeExited, rpc.Details{Ran: maybe}, "fell silent")},
		{"exited before", made(rpc.CodeExited, rpc.Details{Ran: no}, "gone")},
		{"restarting", absent("restarting", "exit status 1")},
		{"spawning", absent("spawning", "")},
		{"lost", absent("lost", "no heartbeat")},
		{"failed", absent("failed", "exit status 3\nstderr: secret")},
		{"gated", absent("gated", "missing env GITHUB_TOKEN")},
		{"draining", absent("draining", "")},
		{"shutdown", absent("shutdown", "")},
		{"ready without instance", absent("ready", "")},
		{"NATS is away", absent("", "")},
		{"timeout", made(rpc.CodeTimeout, rpc.Details{Ran: maybe}, "late")},
		{"timeout before", made(rpc.CodeTimeout, rpc.Details{Ran: no}, "late")},
		{"breaker", made(rpc.CodeBreakerOpen, rpc.Details{Ran: no, RetryAfterMS: 4200}, "open")},
		{"overloaded", made(rpc.CodeOverloaded, rpc.Details{Ran: no, Limit: 256, RetryAfterMS: 500}, "busy")},
		{"overloaded, no details", made(rpc.CodeOverloaded, rpc.Details{Ran: no}, "busy")},
		{"answer discarded", made(rpc.CodeOverloaded, rpc.Details{Ran: maybe, Size: 2 << 20}, "no memory")},
		{"arguments too large", made(rpc.CodeTooLarge, rpc.Details{Ran: no, Size: 2 << 20, Limit: 1 << 20}, "large")},
		{"answer too large", made(rpc.CodeTooLarge, rpc.Details{Ran: maybe, Size: 70 << 20, Limit: 64 << 20}, "large")},
		{"cancelled", made(rpc.CodeCancelled, rpc.Details{Ran: maybe}, "cancelled")},
		{"cancelled before", made(rpc.CodeCancelled, rpc.Details{Ran: no}, "cancelled")},
		{"internal", made(rpc.CodeInternal, rpc.Details{Ran: maybe}, "its answer is not valid JSON.\nmore")},
		{"internal before", made(rpc.CodeInternal, rpc.Details{Ran: no}, "no route")},
		{"arguments", made(rpc.CodeInvalidParams, rpc.Details{Ran: no}, "the arguments do not fit: at /x: got number, want string")},
		{"no such tool", made(rpc.CodeMethodNotFound, rpc.Details{Ran: no}, "no method")},
		{"denied", fmt.Errorf("%w: %w", made(rpc.CodeUnavailable, rpc.Details{Ran: no}, "not allowed"), mesh.ErrDenied)},
		{"connection closed", errors.New("nats: connection closed")},
		{"a proxy without a server", made(rpc.CodeUnavailable, rpc.Details{Ran: maybe, Status: "502 Bad Gateway"}, "502")},
		{"connection closed during the call", fmt.Errorf("%w: closed", made(rpc.CodeUnavailable, rpc.Details{Ran: maybe}, "no answer"))},
	} {
		for _, who := range []struct {
			name string
			t    *callee
		}{{"", plain}, {", read-only", &safe}} {
			result := explain(who.t, tt.err, 5*time.Minute, now).result(mcp.EraLegacy)
			if who.t == &safe && string(result) == string(explain(plain, tt.err, 5*time.Minute, now).result(mcp.EraLegacy)) {
				continue
			}
			checkFailure(t, tt.name, result)
			fmt.Fprintf(&out, "%s%s:\n%s\n\n", tt.name, who.name, result)
		}
	}
	golden(t, "failures.txt", out.String())
}

// checkFailure checks what holds for each failure.
func checkFailure(t *testing.T, name string, result []byte) {
	t.Helper()
	var r struct {
		IsError bool
		Content []struct{ Type, Text string }
		Meta    map[string]struct{ Kind, Ran, Tool string } `json:"_meta"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	info := r.Meta["extmesh/error"]
	if !r.IsError || len(r.Content) != 1 || info.Kind == "" || info.Ran != "no" && info.Ran != "maybe" || info.Tool == "" {
		t.Errorf("%s: incomplete: %s", name, result)
	}
	text := r.Content[0].Text
	sentences := strings.Count(text+" ", ". ")
	if len(text) > 1000 || sentences > 3 || sentences < 2 || strings.Contains(text, "secret") {
		t.Errorf("%s: %d sentences in %d bytes: %s", name, sentences, len(text), text)
	}
	if info.Ran == "no" && !strings.Contains(text, "was not run") {
		t.Errorf("%s: the text does not state that the tool was not run: %s", name, text)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update writes it:\n%s", path, got)
	}
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1s", 1400 * time.Millisecond: "1s", 90 * time.Second: "1m30s", 5 * time.Minute: "5m", time.Hour: "1h", 3*time.Hour + 5*time.Minute: "3h5m", 61 * time.Second: "1m1s",
	} {
		if got := durationText(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestTimeoutText: an answer that was lost, or a limit of the bridge, ends a call before its time is over.
func TestTimeoutText(t *testing.T) {
	d := newBed(t).door(Options{CallTimeout: 5 * time.Minute})
	c := d.newClient(d.view, "")
	for took, want := range map[time.Duration]string{time.Minute: "within 1m", 6 * time.Minute: "within 5m"} {
		f, e := c.failed(&request{running: &call{client: c, began: time.Now().Add(-took)}}, &callee{name: "x"}, rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "late"))
		if e != nil || !strings.Contains(f.error().Message, want) || !strings.Contains(f.error().Message, ", and was cancelled") {
			t.Errorf("after %v: %v, %v", took, f.error(), e)
		}
	}
}
