//go:build linux

package child_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

func TestStderr(t *testing.T) {
	noSurvivors(t)
	long := strings.Repeat("y", 30<<10)
	s := spec("stderr", "one\r\n", "token=s3cret \xff\n", "\n", long+"\n", "unfinished s3cret")
	s.Redact = func(line string) string { return strings.ReplaceAll(line, "s3cret", "[TOKEN]") }
	var lines []string
	s.Stderr = func(line string) { lines = append(lines, line) }
	e := exitError(t, run(t, t.Context(), s, untilEnd))
	want := []string{"one", "token=[TOKEN] \uFFFD", "", long[:16<<10] + " [cut: 30720 bytes]", "unfinished [TOKEN]"}
	if !slices.Equal(lines, want) {
		t.Errorf("got %.200q\nwant %.200q", lines, want)
	}
	if len(e.StderrTail) != 4<<10 || !strings.HasSuffix(e.StderrTail, "yyy [cut: 20480 bytes]\nunfinished [TOKEN]\n") {
		t.Errorf("tail of %d bytes, reason %q", len(e.StderrTail), e.Reason)
	}
}

// A flood does not block the process and is not delivered in full, even if Stderr blocks.
func TestStderrFlood(t *testing.T) {
	noSurvivors(t)
	const n = 200_000
	s := spec("flood", "200000")
	var lines []string
	release := make(chan struct{})
	s.Stderr = func(line string) {
		<-release
		lines = append(lines, line)
	}
	e := exitError(t, run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		<-ctx.Done()
		close(release)
		return nil
	}))
	if e.ExitCode != 0 || !strings.Contains(e.Reason, "line 199999 x") {
		t.Errorf("got %+v", e)
	}
	if len(lines) < 1000 || len(lines) > n/10 {
		t.Errorf("%d lines were delivered", len(lines))
	}
	if !strings.Contains(strings.Join(lines, "\n"), "[dropped ") {
		t.Error("the dropped lines were not reported")
	}
}

// Dropped lines are reported even if there is no more output.
func TestDroppedIsReportedInTime(t *testing.T) {
	t.Parallel()
	s := spec("flood-wait", "5000")
	lines, began := make(chan string, 10000), time.Now()
	s.Stderr = func(line string) { lines <- line }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		dropped, delivered := 0, 0
		for delivered+dropped < 5000 {
			select {
			case line := <-lines:
				n := 0
				if _, err := fmt.Sscanf(line, "[dropped %d lines", &n); err == nil {
					dropped += n
				} else {
					delivered++
				}
			case <-time.After(time.Minute):
				return fmt.Errorf("%d lines delivered, %d dropped", delivered, dropped)
			}
		}
		took := time.Since(began)
		if delivered < 1000 || delivered > 1500+int(200*took.Seconds()) {
			t.Errorf("%d lines delivered within %s", delivered, took)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each line is delivered immediately and in order, with any number of pauses.
func TestStderrLineByLine(t *testing.T) {
	noSurvivors(t)
	const n = 200
	s := spec("echo-stderr")
	lines := make(chan string, 2*n)
	s.Stderr = func(line string) { lines <- line }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		for i := range n {
			fmt.Fprintf(p.Stdin, "one %d\ntwo %d\n", i, i)
			for _, want := range []string{fmt.Sprint("one ", i), fmt.Sprint("two ", i)} {
				select {
				case got := <-lines:
					if got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				case <-time.After(time.Minute):
					return fmt.Errorf("no %q", want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// An idle process has four goroutines: Run's, use's and those that wait for stderr and for the exit.
func TestIdleGoroutines(t *testing.T) {
	noSurvivors(t)
	s := spec("echo-stderr")
	said := make(chan string, 1)
	s.Stderr = func(line string) { said <- line }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		fmt.Fprintln(p.Stdin, "hello")
		<-said
		var ours []string
		eventually(t, "four goroutines", func() bool {
			ours = nil
			for g := range strings.SplitSeq(stacks(), "\n\n") {
				if strings.Contains(g, "internal/child.") && !strings.Contains(g, "reapOrphans") {
					ours = append(ours, g)
				}
			}
			return len(ours) == 4
		})
		if t.Failed() {
			t.Log(strings.Join(ours, "\n\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}
