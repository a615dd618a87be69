package calls

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

var start = time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{0, Bounds[0], Bounds[0] + 1, time.Second, time.Hour, -1} {
		h.Add(d)
	}
	d := h.Read()
	want := [len(Bounds) + 1]uint64{0: 3, 1: 1, 10: 1, len(Bounds): 1}
	if d.N != want || d.Total() != 6 {
		t.Errorf("%v", d)
	}
	d.Add(d)
	if d.Total() != 12 || d.N[0] != 6 {
		t.Errorf("doubled: %v", d)
	}
}

// TestRecord makes records of calls that failed in each way, and of hostile texts.
func TestRecord(t *testing.T) {
	l := NewLog()
	e := l.Extension("hello")
	for i, c := range []End{
		{Tool: "greet", CallID: "own", Code: 7},
		{Tool: "greet", CallID: "tool", ToolFailed: true},
		{Method: "tools/none", CallID: "refused", Code: rpc.CodeMethodNotFound, Refused: true, Err: rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no")},
		{Tool: "greet", CallID: "exited", Code: rpc.CodeExited, Err: rpc.NewError(rpc.CodeExited, rpc.Details{Status: "signal SIGKILL"}, "gone"),
			Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		{Tool: "greet", CallID: strings.Repeat("é", 5000), Agent: "\xff", Code: 1, Traceparent: "x-y"},
		{Tool: "greet", CallID: "well", Took: time.Millisecond},
	} {
		c.At = start.Add(time.Duration(i) * time.Second)
		e.Ended(&c)
	}
	failed := l.Calls(Query{Failed: true})
	var got []string
	for _, r := range failed {
		got = append(got, fmt.Sprint(r.Method, " ", r.Outcome, " ", r.Ran, " ", r.Reason, " ", r.Trace))
		if text, err := json.Marshal(r); err != nil || len(text) > 1000 {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
	want := []string{"tools/greet extension   ", "tools/greet extension_exited maybe signal SIGKILL 4bf92f3577b34da6a3ce929d0e0e4736",
		"tools/none method_not_found no  ", "tools/greet tool_error   ", "tools/greet extension   "}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if n := len(l.Calls(Query{})); n != 6 { // with the slow ones that did not fail
		t.Errorf("%d calls", n)
	}
	for q, want := range map[Query]int{{Failed: true, Tool: "greet"}: 4, {Since: start.Add(5 * time.Second)}: 1, {MinMS: 1}: 1, {Limit: 2}: 2,
		{ID: "hell"}: 0, {ID: "hello", Slow: true, Limit: 1}: 1} {
		if n := len(l.Calls(q)); n != want {
			t.Errorf("%+v: %d", q, n)
		}
	}
	if slow := l.Calls(Query{Slow: true}); slow[0].CallID != "well" {
		t.Errorf("the slowest is %+v", slow[0])
	}
	counts := l.Counts("")
	if len(counts) != 2 || counts[0].Tool != OtherTools || counts[0].Failed != 1 || counts[1].Failed != 4 || counts[1].ToolFailed != 1 || counts[1].Took.Total() != 5 {
		t.Errorf("%+v", counts)
	}
}

// TestBounds floods a log with failures, tools and extensions.
func TestBounds(t *testing.T) {
	l := NewLog()
	fail := func(id string, n int) {
		for i := range n {
			l.Extension(id).Ended(&End{Tool: fmt.Sprint("t", i), CallID: fmt.Sprint(i), Code: 1, Took: time.Duration(i) * time.Second, At: start})
		}
	}
	fail("a", 3000)
	if kept := l.Extension("a").inOrder(); len(kept) != maxFailures || kept[0].CallID != "2000" || kept[maxFailures-1].CallID != "2999" {
		t.Errorf("%d failures from %s", len(kept), kept[0].CallID)
	}
	if slow := l.Calls(Query{Slow: true}); len(slow) != maxSlow || slow[0].CallID != "2999" || slow[maxSlow-1].CallID != fmt.Sprint(3000-maxSlow) {
		t.Errorf("%d slow calls, the slowest is %+v", len(slow), slow[0])
	}
	if n := len(l.Counts("")); n != maxTools+1 {
		t.Errorf("%d tools have counts", n)
	}
	if n := len(l.Calls(Query{Failed: true, Limit: 1 << 30})); n != maxAnswer {
		t.Errorf("an answer has %d records", n)
	}
	for i := range 100 { // these get their share, and "a" keeps its own
		fail(fmt.Sprint("x", i), 100)
	}
	sum, slow := 0, 0
	for _, e := range l.all("") {
		sum += len(e.failures)
		slow += len(e.slow)
		if e.id == "a" && e.failures[len(e.failures)-1].CallID != "2999" {
			t.Errorf("the newest failure of a is %s", e.failures[len(e.failures)-1].CallID)
		}
	}
	if sum > allFailures || sum < allFailures/2 || slow > allSlow {
		t.Errorf("%d failures and %d slow calls are kept", sum, slow)
	}
	l.Keep([]string{"a"})
	if n := len(l.all("")); n != 1 || l.series.Load() != maxTools {
		t.Errorf("%d extensions, %d tools", n, l.series.Load())
	}
	l.Keep(nil)
	if l.series.Load() != 0 {
		t.Errorf("%d tools are counted after everything was removed", l.series.Load())
	}
}

// TestSlowPeriod shows that the slow calls of more than two hours ago are dropped.
func TestSlowPeriod(t *testing.T) {
	l := NewLog()
	for hour := range 4 {
		l.Extension("a").Ended(&End{Took: time.Duration(10-hour) * time.Second, At: start.Add(time.Duration(hour) * 61 * time.Minute)})
	}
	if slow := l.Calls(Query{Slow: true}); len(slow) != 2 || slow[0].TookUS != 8e6 || slow[1].TookUS != 7e6 {
		t.Errorf("%+v", slow)
	}
}

// TestEndedAllocatesNothing shows that a call that succeeds, and is not one of the slowest, allocates nothing.
func TestEndedAllocatesNothing(t *testing.T) {
	e := NewLog().Extension("a")
	for range maxSlow {
		e.Ended(&End{Tool: "t", Took: time.Hour, At: start})
	}
	if n := testing.AllocsPerRun(100, func() { e.Ended(&End{Tool: "t", CallID: "x", Took: time.Second, At: start}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEnded(b *testing.B) {
	e := NewLog().Extension("a")
	for range maxSlow {
		e.Ended(&End{Tool: "t", Took: time.Hour, At: start})
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			e.Ended(&End{Tool: "t", CallID: "x", Took: time.Second, At: start})
		}
	})
}
