package bridge

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

func TestClean(t *testing.T) {
	u := &unit{redact: func(s string) string { return strings.ReplaceAll(s, "hunter2-hunter2", "[TOKEN]") }}
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
		{"0123456789hunter2-hunter2", 12, "012345678…"}, // the secret straddles the cut
		{"é" + strings.Repeat("é", 50), 10, "ééé…"},
		{strings.Repeat("x", 1<<20), 20, strings.Repeat("x", 17) + "…"},
		{"", 10, ""},
	} {
		if got := u.clean(tt.text, tt.n); got != tt.want || len(got) > tt.n {
			t.Errorf("clean(%.40q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
	if got := (&unit{}).clean("without a redactor", 100); got != "without a redactor" {
		t.Errorf("clean = %q", got)
	}
}

// TestDroppedLines reads the words of package child, of which the count on the mesh is made.
func TestDroppedLines(t *testing.T) {
	var mu sync.Mutex
	lines, dropped := 0, 0
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
