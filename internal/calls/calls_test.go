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
	failed := kept(l, Query{Failed: true})
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
	if n := len(kept(l, Query{})); n != 6 { // with the slow ones that did not fail
		t.Errorf("%d calls", n)
	}
	for q, want := range map[Query]int{{Failed: true, Tool: "greet"}: 4, {Since: start.Add(5 * time.Second)}: 1, {MinMS: 1}: 1, {Limit: 2}: 2,
		{ID: "hell"}: 0, {ID: "hello", Slow: true, Limit: 1}: 1} {
		if n := len(kept(l, q)); n != want {
			t.Errorf("%+v: %d", q, n)
		}
	}
	if slow := kept(l, Query{Slow: true}); slow[0].CallID != "well" {
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
	if slow := kept(l, Query{Slow: true}); len(slow) != maxSlow || slow[0].CallID != "2999" || slow[maxSlow-1].CallID != fmt.Sprint(3000-maxSlow) {
		t.Errorf("%d slow calls, the slowest is %+v", len(slow), slow[0])
	}
	if n := len(l.Counts("")); n != maxTools+1 {
		t.Errorf("%d tools have counts", n)
	}
	if n := len(kept(l, Query{Failed: true, Limit: 1 << 30})); n != maxAnswer {
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
	l.Extension("a").KeepTools(map[string]bool{"t1": true, "new": true})
	l.Extension("a").Ended(&End{Tool: "new", At: start})
	if n := l.series.Load(); n != 2 || len(l.Counts("")) != 3 {
		t.Errorf("%d tools, after the extension has got others: %+v", n, l.Counts(""))
	}
	old := l.Extension("a")
	l.Keep(nil)
	old.Ended(&End{Tool: "late", At: start})
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
	if slow := kept(l, Query{Slow: true}); len(slow) != 2 || slow[0].TookUS != 8e6 || slow[1].TookUS != 7e6 {
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

func kept(l *Log, q Query) []Record {
	records, _ := l.Calls(q)
	return records
}

// TestQuantile: the estimate is between the bounds of the class in which the duration is.
func TestQuantile(t *testing.T) {
	var h Histogram
	for range 99 {
		h.Add(3 * time.Millisecond)
	}
	h.Add(time.Hour)
	all := h.Read()
	for q, want := range map[float64]time.Duration{0.5: 3762626 * time.Nanosecond, 0.99: 5 * time.Millisecond, 1: 5 * time.Minute} {
		if got := all.Quantile(q); got.Round(time.Microsecond) != want.Round(time.Microsecond) {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	for range 100 {
		h.Add(300 * time.Microsecond)
	}
	recent := h.Read().Sub(all)
	if got := recent.Quantile(0.99); got != 495*time.Microsecond || recent.Total() != 100 {
		t.Errorf("%v, %d recent calls", got, recent.Total())
	}
	if got := (&Durations{}).Quantile(0.5); got != 0 {
		t.Errorf("without calls: %v", got)
	}
}

// TestStats: a tool's counts can be sent and read again.
func TestStats(t *testing.T) {
	l := NewLog()
	l.Extension("hello").Ended(&End{Tool: "greet", Took: time.Second})
	l.Extension("hello").Ended(&End{Method: "tools/greet", Refused: true, Code: rpc.CodeOverloaded})
	l.Extension("hello").Ended(&End{Method: "tools/none", Refused: true, Code: rpc.CodeOverloaded})
	text, err := json.Marshal(l.Stats("hello"))
	if err != nil {
		t.Fatal(err)
	}
	var back []ToolStat
	if err := json.Unmarshal(text, &back); err != nil || len(back) != 2 {
		t.Fatalf("%v in %s", err, text)
	}
	if took, ok := back[1].Took(); back[0].Calls != 1 || back[0].Failed != 1 || back[1].Calls != 2 || back[1].Failed != 1 || !ok || took.Total() != 1 || took.Sum != time.Second {
		t.Errorf("%s", text)
	}
	back[1].Counts = back[1].Counts[1:]
	if _, ok := back[1].Took(); ok {
		t.Error("counts of other classes are accepted")
	}
}

// TestTap: a tap receives the calls that its query selects, never delays them, and there is a limited number.
func TestTap(t *testing.T) {
	l := NewLog()
	var stops []func()
	var first *Tap
	for n := range maxTaps {
		tap, stop, ok := l.Tap(Query{ID: "a", Failed: n == 0})
		if !ok {
			t.Fatalf("tap %d is refused", n)
		}
		if stops = append(stops, stop); n == 0 {
			first = tap
		}
	}
	if _, _, ok := l.Tap(Query{}); ok {
		t.Error("there are too many taps")
	}
	l.Extension("b").Ended(&End{Tool: "t", CallID: "other", Code: 1})
	l.Extension("a").Ended(&End{Tool: "t", CallID: "well"})
	for n := range tapBuffer + 10 {
		l.Extension("a").Ended(&End{Tool: "t", CallID: fmt.Sprint(n), Code: 1})
	}
	if r := <-first.Records; r.CallID != "0" || len(first.Records) != tapBuffer-1 || first.Dropped.Load() != 10 {
		t.Errorf("%+v, %d records, %d dropped", r, len(first.Records), first.Dropped.Load())
	}
	for _, stop := range stops {
		stop()
	}
	if l.taps.Load() != nil {
		t.Error("a tap is left")
	}
}

// TestLowerLimit: a lower limit keeps the slowest calls.
func TestLowerLimit(t *testing.T) {
	l := NewLog()
	e := l.Extension("a")
	for _, s := range []int{3, 9, 1, 7, 5} {
		e.Ended(&End{Took: time.Duration(s) * time.Second, At: start})
	}
	e.limit(maxFailures, 2)
	if slow := kept(l, Query{Slow: true}); len(slow) != 2 || slow[0].TookUS != 9e6 || slow[1].TookUS != 7e6 {
		t.Errorf("%+v", slow)
	}
}
