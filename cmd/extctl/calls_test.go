package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// putPast runs a bridge that answers calls and stats from a log.
func (b *bed) putPast(t *testing.T, bridge string, l *calls.Log) {
	t.Helper()
	b.putHost(t, wire.Host{Bridge: bridge, Host: "h"})
	since := time.Now().Add(-time.Hour)
	err := b.answer(wire.Prefix(wire.DefaultPrefix).Control(bridge), func(method string, params json.RawMessage) (string, *rpc.Error) {
		var q calls.Query
		if err := json.Unmarshal(params, &q); err != nil {
			t.Error(err)
		}
		var out any
		switch method {
		case "calls":
			kept, more := l.Calls(q)
			out = map[string]any{"calls": kept, "more": more}
		case "stats":
			out = calls.Stats{Since: since, BoundsUS: calls.BoundsUS(), Tools: l.Stats(q.ID)}
		}
		text, err := json.Marshal(out)
		if err != nil {
			t.Error(err)
		}
		return string(text), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pastBed is a mesh with two bridges that have answered calls.
func pastBed(t *testing.T) (b *bed, one, two *calls.Log) {
	t.Helper()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "hello", "b1", "b2")
	b.putExtension(t, "google.mail", "b1")
	one, two = calls.NewLog(), calls.NewLog()
	now := time.Now()
	for i := range 6 {
		l := []*calls.Log{one, two}[i%2]
		l.Extension("hello").Ended(&calls.End{Instance: fmt.Sprint("i", i%2), Tool: "greet", CallID: fmt.Sprint("c", i), Agent: "ada\x1b", Took: time.Duration(i+1) * time.Millisecond,
			At: now.Add(time.Duration(i-10) * time.Minute), Code: rpc.CodeExited, Err: rpc.NewError(rpc.CodeExited, rpc.Details{Status: "signal SIGKILL"}, "gone")})
	}
	one.Extension("hello").Ended(&calls.End{Tool: "greet", CallID: "slow", Took: 90 * time.Second, At: now.Add(-time.Minute)})
	two.Extension("google.mail").Ended(&calls.End{Tool: "send", CallID: "own", Code: 7, Took: time.Second, At: now.Add(-25 * time.Hour)})
	b.putPast(t, "b1", one)
	b.putPast(t, "b2", two)
	return b, one, two
}

// TestCalls lists the calls of two bridges.
func TestCalls(t *testing.T) {
	t.Parallel()
	b, _, _ := pastBed(t)
	for line, want := range map[string]string{
		"calls -o name":                    "slow c5 c4 c3 c2 c1 c0 own",
		"calls --failed -o name":           "c5 c4 c3 c2 c1 c0 own",
		"calls --slow -o name -n 3":        "slow own c5",
		"calls --since 7m30s -o name":      "slow c5 c4 c3",
		"calls hello --min 5ms -o name":    "slow c5 c4",
		"calls google -o name":             "own",
		"calls --tool send -o name":        "own",
		"calls --caller bob -o name":       "",
		"calls --call c3 -o name":          "c3",
		"calls --bridge b2 -o name":        "c5 c3 c1 own",
		"calls google.mail --since 1h":     "",
		"calls hello --failed --since 10s": "",
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		if got := strings.Join(strings.Fields(stdout), " "); got != want || code != 0 {
			t.Errorf("%s: exit code %d, %q, want %q, %s", line, code, got, want, stderr)
		}
		if (stderr == "") != (want != "" && !strings.Contains(line, "-n")) {
			t.Errorf("%s: stderr %q", line, stderr)
		}
	}
	_, stdout, _ := extctl(t.Context(), b.url, "calls")
	lines := strings.Split(stdout, "\n")
	for n, want := range []string{"TIME EXTENSION TOOL DURATION CALLER CALL ERROR", "hello greet 90 s - slow -", "hello greet 6 ms ada? c5 extension_exited: signal SIGKILL"} {
		if got := strings.Join(strings.Fields(lines[n]), " "); !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !strings.HasSuffix(lines[8], "own   the extension's own error 7") {
		t.Errorf("%q", lines[8])
	}
	var out struct {
		Calls []callJSON
		More  bool
	}
	if _, stdout, _ = extctl(t.Context(), b.url, "calls", "--json", "--failed", "-n", "2"); json.Unmarshal([]byte(stdout), &out) != nil || len(out.Calls) != 2 || !out.More ||
		out.Calls[0].Bridge != "b2" || out.Calls[1].Bridge != "b1" || out.Calls[0].CallID != "c5" {
		t.Errorf("%s", stdout)
	}
}

// TestCallsRefused: wrong command lines of the verbs about the past have an error that says what is wrong.
func TestCallsRefused(t *testing.T) {
	t.Parallel()
	b, _, _ := pastBed(t)
	for line, want := range map[string]string{
		"calls --failed --slow":    "2 --failed and --slow cannot be combined",
		"calls --min -1s":          "2 --min -1s: want a positive duration",
		"calls --since yesterday":  `2 --since "yesterday": want a duration such as 10m`,
		"calls -n 0":               "2 -n 0: want at least 1",
		"calls -o xml":             `2 -o "xml": want table`,
		"calls a b":                "2 unexpected argument",
		"calls x*y":                "4 ",
		"calls hallo":              `1 no extension has the id "hallo"`,
		"calls --bridge b*":        "4 a bridge's name is written like an id",
		"calls --bridge b3":        "10 bridge b3 is not available",
		"calls --bridge b1,b3":     "10 bridge b3 is not available",
		"calls --failed --nothing": "2 unknown flag: --nothing",
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		number, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(code) != number || !strings.Contains(stderr, text) {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
		if code, stdout, _ := extctl(t.Context(), b.url, append(strings.Fields(line), "--json")...); fmt.Sprint(code) != number && !strings.Contains(line, "-o") {
			t.Errorf("%s --json: exit code %d, %s", line, code, stdout)
		} else {
			decodeOutput(t, stdout)
		}
	}
	if code, _, stderr := extctl(t.Context(), b.url, "calls", "hallo"); code != exitNotFound || hintOf(stderr) != "did you mean hello?" {
		t.Errorf("%d, %s", code, stderr)
	}
}

func TestDurationText(t *testing.T) {
	var got []string
	for _, d := range []time.Duration{0, 1234, 1234567, 999 * time.Millisecond, 1500 * time.Millisecond, 90 * time.Second, 3 * time.Hour} {
		got = append(got, durationText(d))
	}
	if want := []string{"0 ms", "0.00123 ms", "1.23 ms", "999 ms", "1.5 s", "90 s", "3h0m0s"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
