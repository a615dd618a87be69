package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// runsOn puts an extension into the catalog that runs on bridges, one instance on each.
func (b *bed) runsOn(t *testing.T, id string, bridges ...string) {
	t.Helper()
	state := mesh.StateDoc{State: "ready", Available: true}
	for _, bridge := range bridges {
		state.Instances = append(state.Instances, mesh.InstanceState{Instance: "on-" + bridge, Bridge: bridge, State: "ready"})
	}
	data, err := json.Marshal(state)
	if err == nil {
		_, err = b.kv.Put(t.Context(), "state."+id, data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// operable answers what is asked of a bridge as one that has one instance, when before lets it.
func (b *bed) operable(t *testing.T, bridge string, before func()) {
	t.Helper()
	if err := b.answer(mesh.Prefix(mesh.DefaultPrefix).Control(bridge), func(string, json.RawMessage) (string, *rpc.Error) {
		before()
		return fmt.Sprintf(`{"instances":["on-%s"],"lines":[{"id":"x","instance":"on-%s","ts":"2026-01-02T03:04:05Z","line":"from %s"}]}`, bridge, bridge, bridge), nil
	}); err != nil {
		t.Fatal(err)
	}
}

// said is what restart or logs print with --json.
type said struct {
	Bridges []struct{ Bridge string }
	Lines   []struct{ Instance string }
	Failed  []struct {
		Bridge string
		Error  *faultJSON
	}
	Error *faultJSON
}

// oneObject reads stdout, which is to be that.
func oneObject(t *testing.T, stdout string) (out said) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(stdout))
	if err := d.Decode(&out); err != nil {
		t.Errorf("%v in %q", err, stdout)
	}
	if err := d.Decode(new(any)); err != io.EOF {
		t.Errorf("more than one JSON object: %q", stdout)
	}
	return out
}

// TestOperateInPart is an extension on three bridges of which the first does not do what it is asked: the others do, each
// with the whole time, and what is missing is told.
func TestOperateInPart(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.operable(t, "b2", func() {})
	b.operable(t, "b3", func() {})
	for _, tc := range []struct {
		name   string
		answer func(string, json.RawMessage) (string, *rpc.Error) // nil: it is gone
		code   int
		kind   string
		says   string
	}{
		{"gone", nil, exitUnavailable, "unavailable", "bridge gone does not answer: nobody listens on ext.control.gone"},
		{"hung", func(string, json.RawMessage) (string, *rpc.Error) { return "", nil }, exitTimeout, "timeout", "asking bridge hung: "},
		{"refuses", func(string, json.RawMessage) (string, *rpc.Error) {
			return "", rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "I stop")
		}, exitUnavailable, "unavailable", "bridge refuses: "},
		{"odd", func(string, json.RawMessage) (string, *rpc.Error) { return `{"instances":7,"lines":7}`, nil }, exitOther, "other", "bridge odd: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.answer != nil {
				if err := b.answer(mesh.Prefix(mesh.DefaultPrefix).Control(tc.name), tc.answer); err != nil {
					t.Fatal(err)
				}
			}
			id := "on-" + tc.name
			b.runsOn(t, id, "b3", tc.name, "b2")
			verb := func(line, want string) (stdout, stderr string) {
				code := 0
				patiently(func(timeout string) bool {
					if tc.code != exitTimeout {
						timeout = "1m"
					}
					code, stdout, stderr = extctl(t.Context(), b.url, strings.Fields(line+" --timeout "+timeout)...)
					return code != exitTimeout || tc.code == exitTimeout && strings.Contains(stdout, want)
				})
				if code != tc.code {
					t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, tc.code, stdout, stderr)
				}
				return stdout, stderr
			}
			if stdout, stderr := verb("restart "+id, "b2"); stdout != "b2: restarting 1 instance\nb3: restarting 1 instance\n" || !strings.HasPrefix(stderr, "extctl: error: "+tc.says) {
				t.Errorf("restart: %s%s", stdout, stderr)
			}
			if stdout, stderr := verb("logs "+id, "b2"); strings.Count(stdout, "\n") != 2 || !strings.HasSuffix(stdout, "from b3\n") || !strings.Contains(stderr, tc.says) {
				t.Errorf("logs: %s%s", stdout, stderr)
			}
			for _, line := range []string{"restart " + id + " --json", "logs " + id + " --json"} {
				stdout, stderr := verb(line, "b2")
				out := oneObject(t, stdout)
				if len(out.Bridges)+len(out.Lines) != 2 || stderr != "" || out.Error != nil {
					t.Errorf("%s: %s%s", line, stdout, stderr)
				}
				if f := out.Failed; len(f) != 1 || f[0].Bridge != tc.name || f[0].Error == nil || f[0].Error.Kind != tc.kind || !strings.HasPrefix(f[0].Error.Message, tc.says) {
					t.Errorf("%s: failed: %s", line, stdout)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) { // it is a failure like any other
		b.runsOn(t, "nowhere", "gone", "away")
		for _, verb := range []string{"restart", "logs"} {
			code, stdout, _ := extctl(t.Context(), b.url, verb, "nowhere", "--json")
			if out := oneObject(t, stdout); code != exitUnavailable || out.Error == nil || out.Error.Kind != "unavailable" || out.Failed != nil {
				t.Errorf("%s: exit code %d, %s", verb, code, stdout)
			}
		}
	})
}

// TestOperateSideBySide is bridges each of which answers when the one behind it has: they are asked at once, and listed
// in order all the same.
func TestOperateSideBySide(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	names := []string{"b1", "b2", "b3"}
	b.runsOn(t, "x", "b2", "b3", "b1")
	answered := map[string]chan bool{"b1": make(chan bool, 9), "b2": make(chan bool, 9), "b3": make(chan bool, 9)}
	for i, name := range names {
		b.operable(t, name, func() {
			if i+1 < len(names) {
				select {
				case <-answered[names[i+1]]:
				case <-t.Context().Done():
				}
			}
			answered[name] <- true
		})
	}
	want := []struct{ Bridge string }{{"b1"}, {"b2"}, {"b3"}}
	code, stdout, _ := extctl(t.Context(), b.url, "restart", "x", "--json", "--timeout", "1m")
	if out := oneObject(t, stdout); code != 0 || !reflect.DeepEqual(out.Bridges, want) {
		t.Errorf("restart: exit code %d, %s", code, stdout)
	}
	lines := []struct{ Instance string }{{"on-b1"}, {"on-b2"}, {"on-b3"}}
	code, stdout, _ = extctl(t.Context(), b.url, "logs", "x", "--json", "--timeout", "1m")
	if out := oneObject(t, stdout); code != 0 || !reflect.DeepEqual(out.Lines, lines) {
		t.Errorf("logs: exit code %d, %s", code, stdout)
	}
}

// TestFollowHung: whoever follows hears what comes, though the bridge does not answer for what has been.
func TestFollowHung(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := b.answer(mesh.Prefix(mesh.DefaultPrefix).Control("hung"), func(string, json.RawMessage) (string, *rpc.Error) { return "", nil }); err != nil {
		t.Fatal(err)
	}
	b.runsOn(t, "x", "hung")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	u := &upRun{cancel: cancel, done: make(chan int, 1)}
	go func() { // ends with cancel
		u.done <- run(ctx, []string{"logs", "-f", "x", "--server", b.url}, nil, &u.out, &u.err, func(string) string { return "" })
	}()
	u.await(t, "asking bridge hung: ")
	if err := b.nc.Publish(mesh.Prefix(mesh.DefaultPrefix).Log("x"), []byte(`{"id":"x","instance":"on-hung","ts":"2026-01-02T03:04:05Z","line":"what comes"}`)); err != nil {
		t.Fatal(err)
	}
	u.await(t, "what comes")
	cancel()
	if code := <-u.done; code != exitInterrupted && code != exitOK {
		t.Errorf("exit code %d\n%s%s", code, u.out.String(), u.err.String())
	}
}
