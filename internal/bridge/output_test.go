package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

func TestClean(t *testing.T) {
	w := &workload{redact: func(s string) string { return strings.ReplaceAll(s, "hunter2-hunter2", "[TOKEN]") }}
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"plain", 100, "plain"},
		{" two\nlines\tand \x1b[31mcolour\x00 ", 100, "two lines and  [31mcolour"},
		{"bad \xff\xfe utf8", 100, "bad \ufffd utf8"},
		{"token=hunter2-hunter2", 100, "token=[TOKEN]"},
		{"token=hunter2-hunter2 and more", 14, "token=[TOKE…"},
		{"0123456789hunter2-hunter2", 12, "012345678…"}, // the secret crosses the cut
		{"é" + strings.Repeat("é", 50), 10, "ééé…"},
		{strings.Repeat("x", 1<<20), 20, strings.Repeat("x", 17) + "…"},
		{"", 10, ""},
	} {
		if got := w.clean(tt.text, tt.n); got != tt.want || len(got) > tt.n {
			t.Errorf("clean(%.40q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
	if got := (&workload{}).clean("without a redactor", 100); got != "without a redactor" {
		t.Errorf("clean = %q", got)
	}
}

// TestCleanCut: secrets that cross the end of what clean reads are replaced, even if shorter replacements before them move
// them into the part that is shown.
func TestCleanCut(t *testing.T) {
	token := strings.Repeat("secret", 134)[:800]
	key := strings.Repeat("0123456789", 10<<10)
	redact := gate.NewRedactor([]string{"MY_TOKEN=" + token, "SA_KEY=" + key[:6000], "BIG_KEY=" + key}, nil, nil).Redact
	for _, tt := range []struct {
		name, text string
		n          int
		want       string
	}{
		{"seen to its end", "bad key " + token + ".", maxNoise, "bad key [MY_TOKEN]."},
		{"again and again", strings.Repeat(token+" ", 8), maxNoise, strings.Repeat("[MY_TOKEN] ", 4) + "[MY_TOKEN]…"},
		{"again and again, a reason", strings.Repeat(token+" ", 8), maxReason, strings.Repeat("[MY_TOKEN] ", 5) + "[MY_TOKEN]…"},
		{"one of 100 KiB", "handshake: bad credentials " + key, maxNoise, "handshake: bad credentials [BIG_KEY]…"},
		{"one of 100 KiB, a reason", "handshake: bad credentials " + key, maxReason, "handshake: bad credentials [BIG_KEY]…"},
		{"nothing else is looked at", strings.Repeat(token, 100), 20, "[MY_TOKEN][MY_TOK…"},
		{"blanks", strings.Repeat(" ", 1<<20), 100, "…"},
	} {
		w := &workload{redact: redact}
		if got := w.clean(tt.text, tt.n); got != tt.want {
			t.Errorf("%s: %.80q of %d bytes, want %q", tt.name, got, len(got), tt.want)
		}
	}
	var log strings.Builder
	s, published := newNoisy(&log, redact)
	(&run{inst: s, f: &forwarder{}}).handleNoise([]byte(strings.Repeat(token+" ", 8)), errors.New("no message"))
	if got := log.String(); strings.Contains(got, "secret") || !strings.Contains(got, "[MY_TOKEN] [MY_TOKEN]…") || !strings.Contains(got, "print to standard error instead") {
		t.Errorf("noise is logged as %q", got)
	}
	if got := s.lines.last(0); len(got) != 1 || got[0].Stream != "stdout" || strings.Contains(got[0].Text, "secret") || !strings.HasPrefix(got[0].Text, "[MY_TOKEN] [MY_TOKEN]") {
		t.Errorf("noise is kept as %+v", got)
	}
	if len(*published) != 1 || (*published)[0].Line != s.lines.last(0)[0].Text {
		t.Errorf("noise is published as %v", *published)
	}
}

// newNoisy returns the second replica of an extension, whose log is written to log, and what it publishes.
func newNoisy(log io.Writer, redact func(string) string) (*instance, *[]logLine) {
	published := &[]logLine{}
	a := wire.Announce{ID: "noisy", Version: "1.0.0", Bridge: "b1", Replica: 2}
	node := serve.NewPublisher(nil, serve.PublisherOptions{Prefix: wire.DefaultPrefix})
	return &instance{workload: &workload{announce: a, redact: redact}, mesh: node.Join(a), log: slog.New(slog.NewTextHandler(log, nil)),
		output: output{lines: &ring{}, noise: newNoiseLimits(), publishLine: func(l logLine) { *published = append(*published, l) }}}, published
}

// TestNoiseIsKept: what a child prints to standard output is kept and published, within a limit, with the number of
// lines left out.
func TestNoiseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, published := newNoisy(io.Discard, nil)
		r := &run{inst: s, f: &forwarder{}}
		for n := range 300 {
			r.handleNoise([]byte(fmt.Sprint("debug ", n)), errors.New("no message"))
		}
		time.Sleep(time.Second)
		r.handleNoise(nil, errors.New("an empty line"))
		r.handleNoise([]byte("the last"), errors.New("no message"))
		got := s.lines.last(0)
		if len(got) != 202 || len(*published) != 202 {
			t.Fatalf("%d lines are kept, %d published", len(got), len(*published))
		}
		if got[0].Text != "debug 0" || got[199].Text != "debug 199" || got[200].Text != "[dropped 100 lines of stdout: too many]" || got[201].Text != "the last" {
			t.Errorf("kept: %+v", got[198:])
		}
		at := time.Date(2000, 1, 1, 0, 0, 1, 0, time.UTC)
		want := []logLine{
			{ID: "noisy", Bridge: "b1", Replica: 2, Instance: s.mesh.Instance(), TS: at, Stream: "stdout", Dropped: 100},
			{ID: "noisy", Bridge: "b1", Replica: 2, Instance: s.mesh.Instance(), TS: at, Stream: "stdout", Line: "the last"},
		}
		if !slices.Equal((*published)[200:], want) {
			t.Errorf("published: %v", (*published)[200:])
		}
	})
}

// TestMessagesAreKept: the log messages of a child that report an error are kept like its output, without secrets and within its
// limit, and the last one may be the reason of its end, if that comes soon.
func TestMessagesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hide := func(s string) string { return strings.ReplaceAll(s, "hunter2-hunter2", "[TOKEN]") }
		s, published := newNoisy(io.Discard, hide)
		s.eventLimit, s.publishEvent = newEventLimit(), func([]byte) error { return nil }
		r := &run{inst: s, f: &forwarder{noise: new(noiseTail)}}
		message := func(level, data string) {
			r.handleNotification("notifications/message", []byte(`{"level":"`+level+`","logger":"x","data":`+data+`}`))
		}
		message("warning", `"not kept"`)
		message("critical", `"cannot start\nwith hunter2-hunter2"`)
		message("error", `{"message":"fatal"}`)
		want := []string{"critical: cannot start with [TOKEN]", `error: {"message":"fatal"}`}
		got := s.lines.last(0)
		if len(got) != 2 || len(*published) != 2 {
			t.Fatalf("kept: %+v, published: %+v", got, *published)
		}
		for i, l := range got {
			if l.Text != want[i] || l.Stream != "log" || (*published)[i].Line != want[i] || (*published)[i].Stream != "log" {
				t.Errorf("kept: %+v, published: %+v", l, (*published)[i])
			}
		}
		if got := r.f.noise.texts(hide); !slices.Equal(got, want[1:]) {
			t.Errorf("the reason may be %q", got)
		}
		for range 1000 {
			message("error", `"again"`)
		}
		if n := len(s.lines.last(0)); n != 200 {
			t.Errorf("%d lines of a flood are kept", n)
		}
		time.Sleep(messageAge) // fake time
		if got := r.f.noise.texts(hide); len(got) != 0 {
			t.Errorf("later the reason may be %q", got)
		}
	})
}

// TestDroppedLines reads package child's message about dropped lines, from which the count on the mesh is taken.
func TestDroppedLines(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	lines, dropped := 0, 0
	if n := droppedLines("[dropped 1 lines of stderr: too many] deleted /srv/data"); n != 0 {
		t.Errorf("a line of the child counts as %d", n)
	}
	err := child.Run(t.Context(), child.Spec{
		Command: "sh", Args: []string{"-c", "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done"},
		Env: []string{"PATH=/usr/bin:/bin"},
		Stderr: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			if n := droppedLines(line); n > 0 {
				dropped += n
			} else {
				lines++
			}
		},
	}, func(ctx context.Context, _ *child.Process) error { <-ctx.Done(); return nil })
	if err == nil || lines+dropped != 3000 || dropped == 0 {
		t.Errorf("%v: %d lines and %d dropped, want 3000 in all", err, lines, dropped)
	}
	for _, line := range []string{"", "line", "[dropped]", "[dropped x lines of stderr: too many]", "[dropped -1 lines of stderr: too many]"} {
		if n := droppedLines(line); n > 0 {
			t.Errorf("droppedLines(%q) = %d", line, n)
		}
	}
}

func TestLogLine(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		line logLine
		want string
	}{
		{logLine{ID: "a", Instance: "b", TS: at, Line: "text"}, `{"id":"a","instance":"b","ts":"2026-11-21T12:00:00Z","line":"text"}`},
		{logLine{ID: "a", Instance: "b", TS: at}, `{"id":"a","instance":"b","ts":"2026-11-21T12:00:00Z","line":""}`},
		{logLine{ID: "a", Instance: "b", TS: at, Line: "x", Dropped: 7}, `{"id":"a","instance":"b","ts":"2026-11-21T12:00:00Z","dropped":7}`},
	} {
		if got, err := json.Marshal(tt.line); err != nil || string(got) != tt.want {
			t.Errorf("%+v is %s, %v; want %s", tt.line, got, err, tt.want)
		}
	}
}

// TestPlainErrorText: reasons do not contain texts of Go's standard library, but the child's stderr is not changed.
func TestPlainErrorText(t *testing.T) {
	for text, want := range map[string]string{
		"writing to the peer: write |1: broken pipe":       "writing to the peer: it closed its standard input",
		"handshake: initialize: context deadline exceeded": "handshake: initialize: timed out",
		"initialize: EOF": "initialize: the connection was closed",
		"EOF":             "the connection was closed",
		"the tool EOF":    "the tool EOF",
		"context canceled; exit status 1 after 3s, stderr: context canceled": "it was cancelled; exit status 1 after 3s, stderr: context canceled",
	} {
		if got := plainErrorText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
