package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// putExtension writes an extension to the catalog, with one instance on each bridge.
func (b *bed) putExtension(t *testing.T, id string, bridges ...string) {
	t.Helper()
	state := wire.StateDoc{State: "ready", Available: true}
	for _, bridge := range bridges {
		state.Instances = append(state.Instances, wire.InstanceState{Instance: "on-" + bridge, Bridge: bridge, State: "ready"})
	}
	data, err := json.Marshal(state)
	if err == nil {
		_, err = b.kv.Put(t.Context(), "state."+id, data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// putHost writes the report of a bridge to the catalog.
func (b *bed) putHost(t *testing.T, h wire.Host) {
	t.Helper()
	data, err := json.Marshal(h)
	if err == nil {
		_, err = b.kv.Put(t.Context(), "host."+h.Bridge, data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serveControl answers the control requests of a bridge with one instance. It calls before first, if not nil.
func (b *bed) serveControl(t *testing.T, bridge string, before func()) {
	t.Helper()
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control(bridge), func(string, json.RawMessage) (string, *rpc.Error) {
		before()
		return fmt.Sprintf(`{"instances":["on-%s"],"lines":[{"id":"x","instance":"on-%s","ts":"2026-01-02T03:04:05Z","line":"from %s"}]}`, bridge, bridge, bridge), nil
	}); err != nil {
		t.Fatal(err)
	}
}

// output is the JSON output of restart or logs.
type output struct {
	Bridges []struct{ Bridge string }
	Lines   []struct{ Instance string }
	Failed  []struct {
		Bridge string
		Error  *faultJSON
	}
	Error *faultJSON
}

// decodeOutput decodes stdout and fails unless it is exactly one JSON object.
func decodeOutput(t *testing.T, stdout string) (out output) {
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

// succeeded is the number of bridges of which there is a result, in either form of the output.
func succeeded(stdout string) int {
	var out output
	if json.Unmarshal([]byte(stdout), &out) == nil {
		return len(out.Bridges) + len(out.Lines)
	}
	return strings.Count(stdout, "\n")
}

// TestControlPartialFailure sends requests to three bridges, of which one fails. The other two must succeed, with the
// whole time limit each, and the failure must be printed.
func TestControlPartialFailure(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.serveControl(t, "b2", func() {})
	b.serveControl(t, "b3", func() {})
	for _, tc := range []struct {
		name   string
		answer func(string, json.RawMessage) (string, *rpc.Error) // nil: no subscriber
		code   int
		kind   string
		says   string
	}{
		{"gone", nil, exitUnavailable, "unavailable", "bridge gone is not available: no subscriber on ext.control.gone"},
		{"hung", func(string, json.RawMessage) (string, *rpc.Error) { return "", nil }, exitTimeout, "timeout", "bridge hung did not answer the request "},
		{"refuses", func(string, json.RawMessage) (string, *rpc.Error) {
			return "", rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "the bridge is stopping")
		}, exitUnavailable, "unavailable", "bridge refuses: "},
		{"odd", func(string, json.RawMessage) (string, *rpc.Error) { return `{"instances":7,"lines":7}`, nil }, exitOther, "other", "bridge odd: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.answer != nil {
				if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control(tc.name), tc.answer); err != nil {
					t.Fatal(err)
				}
			}
			id := "on-" + tc.name
			b.putExtension(t, id, "b3", tc.name, "b2")
			verb := func(line string) (stdout, stderr string) {
				code := 0
				withTimeouts(func(timeout string) bool {
					if tc.code != exitTimeout {
						timeout = "1m"
					}
					code, stdout, stderr = extctl(t.Context(), b.url, strings.Fields(line+" --timeout "+timeout)...)
					return tc.code != exitTimeout || succeeded(stdout) == 2
				})
				if code != tc.code {
					t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, tc.code, stdout, stderr)
				}
				return stdout, stderr
			}
			if stdout, stderr := verb("drain " + id + " --yes"); stdout != "b2: draining 1 instance\nb3: draining 1 instance\n" || !strings.HasPrefix(stderr, "extctl: error: "+tc.says) {
				t.Errorf("drain: %s%s", stdout, stderr)
			}
			if stdout, stderr := verb("logs " + id); strings.Count(stdout, "\n") != 2 || !strings.HasSuffix(stdout, "from b3\n") || !strings.Contains(stderr, tc.says) {
				t.Errorf("logs: %s%s", stdout, stderr)
			}
			for _, line := range []string{"drain " + id + " --yes --json", "logs " + id + " --json"} {
				stdout, stderr := verb(line)
				out := decodeOutput(t, stdout)
				if len(out.Bridges)+len(out.Lines) != 2 || stderr != "" || out.Error != nil {
					t.Errorf("%s: %s%s", line, stdout, stderr)
				}
				if f := out.Failed; len(f) != 1 || f[0].Bridge != tc.name || f[0].Error == nil || f[0].Error.Kind != tc.kind || !strings.HasPrefix(f[0].Error.Message, tc.says) {
					t.Errorf("%s: failed: %s", line, stdout)
				}
			}
		})
	}
	t.Run("all fail", func(t *testing.T) {
		b.putExtension(t, "nowhere", "gone", "away")
		for _, verb := range []string{"restart", "logs"} {
			code, stdout, _ := extctl(t.Context(), b.url, verb, "nowhere", "--json")
			if out := decodeOutput(t, stdout); code != exitUnavailable || out.Error == nil || out.Error.Kind != "unavailable" || out.Failed != nil {
				t.Errorf("%s: exit code %d, %s", verb, code, stdout)
			}
		}
	})
}

// TestControlInParallel uses bridges that each reply after the next one has: the requests must be sent in parallel, and
// the results listed in order.
func TestControlInParallel(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	names := []string{"b1", "b2", "b3"}
	b.putExtension(t, "x", "b2", "b3", "b1")
	answered := map[string]chan bool{"b1": make(chan bool, 9), "b2": make(chan bool, 9), "b3": make(chan bool, 9)}
	for i, name := range names {
		b.serveControl(t, name, func() {
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
	code, stdout, _ := extctl(t.Context(), b.url, "drain", "x", "--yes", "--json", "--timeout", "1m")
	if out := decodeOutput(t, stdout); code != 0 || !reflect.DeepEqual(out.Bridges, want) {
		t.Errorf("restart: exit code %d, %s", code, stdout)
	}
	lines := []struct{ Instance string }{{"on-b1"}, {"on-b2"}, {"on-b3"}}
	code, stdout, _ = extctl(t.Context(), b.url, "logs", "x", "--json", "--timeout", "1m")
	if out := decodeOutput(t, stdout); code != 0 || !reflect.DeepEqual(out.Lines, lines) {
		t.Errorf("logs: exit code %d, %s", code, stdout)
	}
}

// TestLogsFollowWithHungBridge: logs -f prints new lines although the bridge does not return the stored ones.
func TestLogsFollowWithHungBridge(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("hung"), func(string, json.RawMessage) (string, *rpc.Error) { return "", nil }); err != nil {
		t.Fatal(err)
	}
	b.putExtension(t, "x", "hung")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	u := &upRun{cancel: cancel, done: make(chan int, 1)}
	go func() { // ends with cancel
		u.done <- run(ctx, []string{"logs", "-f", "x", "--server", b.url}, nil, &u.out, &u.err, func(string) string { return "" })
	}()
	u.await(t, "bridge hung did not answer the request logs within ")
	if err := b.nc.Publish(wire.Prefix(wire.DefaultPrefix).Log("x"), []byte(`{"id":"x","instance":"on-hung","ts":"2026-01-02T03:04:05Z","line":"what comes"}`)); err != nil {
		t.Fatal(err)
	}
	u.await(t, "what comes")
	cancel()
	if code := <-u.done; code != exitInterrupted && code != exitOK {
		t.Errorf("exit code %d\n%s%s", code, u.out.String(), u.err.String())
	}
}

// TestLogText: a line has its date unless it is of today, and the source that tells replicas apart.
func TestLogText(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.Local)
	l := logLine{ID: "x", Bridge: "b1", Replica: 2, Instance: "WRsAC6lqDInN9FLkZ3Wig6", TS: now.Add(-time.Hour), Line: "loading\x1b"}
	single, old, yesterday := l, l, l
	single.Replica, single.Stream = 0, "stdout"
	old.Bridge = "" // an old bridge
	yesterday.TS = now.Add(-24 * time.Hour)
	for _, tt := range []struct {
		l      logLine
		withID bool
		want   string
	}{
		{l, false, "11:00:00 b1/2 loading?"},
		{l, true, "11:00:00 x b1/2 loading?"},
		{single, false, "11:00:00 b1/1 [stdout] loading?"},
		{old, false, "11:00:00 Z3Wig6 loading?"},
		{logLine{TS: now}, false, "12:00:00 - "},
		{logLine{TS: now, Bridge: "b1", Dropped: 7}, false, "12:00:00 b1/1 [dropped 7 lines]"},
		{yesterday, false, "2026-03-03 12:00:00 b1/2 loading?"},
	} {
		if got := logText(tt.l, tt.withID, false, now); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	l.TS = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
	if got, want := logText(l, false, true, now), "2026-03-04T05:06:07.089Z b1/2 loading?"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for text, want := range map[string]time.Time{
		"": {}, "90m": now.Add(-90 * time.Minute), "2026-03-04": now.Add(-12 * time.Hour), "2026-03-04 11:00": now.Add(-time.Hour),
		"2026-03-04T05:06:07Z": time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
	} {
		if got, err := sinceTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("--since %q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"yesterday", "-5m", "12"} {
		if _, err := sinceTime(text, now); err == nil {
			t.Errorf("--since %q is accepted", text)
		}
	}
}

// TestLogsOfSeveral: the lines of several extensions are printed in order, each with its extension, and followed.
func TestLogsOfSeveral(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1")
	b.putExtension(t, "y", "b1")
	err = b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(_ string, params json.RawMessage) (string, *rpc.Error) {
		var p struct{ ID string }
		if err := json.Unmarshal(params, &p); err != nil {
			t.Error(err)
		}
		second := map[string]string{"x": "1", "y": "2"}[p.ID]
		return `{"lines":[{"id":"` + p.ID + `","bridge":"b1","instance":"i` + p.ID + `","ts":"2026-01-02T03:04:0` + second + `Z","line":"of ` + p.ID + `"}]}`, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	u := &upRun{done: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with cancel
		u.done <- run(ctx, []string{"logs", "-f", "y", "x", "-t", "--server", b.url}, nil, &u.out, &u.err, func(string) string { return "" })
	}()
	u.await(t, "2026-01-02T03:04:01.000Z x b1/1 of x\n2026-01-02T03:04:02.000Z y b1/1 of y\n")
	for _, id := range []string{"x", "y"} {
		if err := b.nc.Publish(wire.Prefix(wire.DefaultPrefix).Log(id), []byte(`{"id":"`+id+`","bridge":"b1","instance":"i","ts":"2026-01-02T03:05:00Z","line":"later"}`)); err != nil {
			t.Fatal(err)
		}
		u.await(t, "2026-01-02T03:05:00.000Z "+id+" b1/1 later\n")
	}
	cancel()
	<-u.done
}

// TestLostBridgeIsLeftOut: a command for all instances of an extension does not fail because of a bridge that is lost.
func TestLostBridgeIsLeftOut(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1", "gone")
	b.putHost(t, wire.Host{Bridge: "gone", State: heartbeat.Lost})
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(string, json.RawMessage) (string, *rpc.Error) {
		return `{"lines":[{"id":"x","bridge":"b1","instance":"i","ts":"2026-01-02T03:04:05Z","line":"of x"}]}`, nil
	}); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := extctl(t.Context(), b.url, "logs", "x")
	if code != exitOK || !strings.Contains(stdout, "of x") || !strings.Contains(stderr, "gone is lost; nothing runs there") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if code, _, stderr := extctl(t.Context(), b.url, "logs", "x", "--bridge", "gone"); code != exitUnavailable {
		t.Errorf("of the lost bridge itself: exit code %d, %s", code, stderr)
	}
}

// TestReloadIsShown: extctl reload ends when the catalog does not show what was replaced as ready any more.
func TestReloadIsShown(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1")
	b.putHost(t, wire.Host{Bridge: "b1"})
	var shown atomic.Bool
	var put sync.WaitGroup
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(string, json.RawMessage) (string, *rpc.Error) {
		put.Add(1)
		time.AfterFunc(300*time.Millisecond, func() {
			defer put.Done()
			shown.Store(true)
			if _, err := b.kv.PutString(context.Background(), "state.x", `{"state":"spawning","instances":[{"instance":"new","bridge":"b1","state":"spawning"}]}`); err != nil {
				t.Error(err)
			}
		})
		return `{"started":[],"replaced":["x"],"stopped":[],"search_paths":["/x"]}`, nil
	}); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := extctl(t.Context(), b.url, "reload")
	if isShown := shown.Load(); code != exitOK || !isShown {
		t.Errorf("exit code %d, shown: %v, %s%s", code, isShown, stdout, stderr)
	}
	put.Wait()
}

// TestLogsWithLostBridge: the logs of one extension are shown although the only bridge of the other is gone, in either order.
func TestLogsWithLostBridge(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "x", "b1")
	b.putExtension(t, "y", "gone")
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(string, json.RawMessage) (string, *rpc.Error) {
		return `{"lines":[{"id":"x","bridge":"b1","instance":"i","ts":"2026-01-02T03:04:05Z","line":"of x"}]}`, nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, ids := range []string{"x y", "y x"} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields("logs "+ids)...)
		if code != exitUnavailable || !strings.Contains(stdout, "of x") || !strings.Contains(stderr, "bridge gone is not available") {
			t.Errorf("logs %s: exit code %d, %s%s", ids, code, stdout, stderr)
		}
	}
	if code, stdout, _ := extctl(t.Context(), b.url, "logs", "y"); code != exitUnavailable || stdout != "" {
		t.Errorf("logs y: exit code %d, %s", code, stdout)
	}
}
