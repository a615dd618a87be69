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
		t.Errorf("tail of %d bytes ends in %q", len(e.StderrTail), e.LastLine())
	}
}

// A flood does not stall the process, nor is it handed on in full; a Stderr that is stuck changes nothing.
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
	if e.ExitCode != 0 || !strings.Contains(e.LastLine(), "line 199999 x") {
		t.Errorf("got %+v", e)
	}
	if len(lines) < 1000 || len(lines) > n/10 {
		t.Errorf("%d lines were handed on", len(lines))
	}
	if !strings.Contains(strings.Join(lines, "\n"), "[dropped ") {
		t.Error("nobody says that lines were dropped")
	}
}

// That lines were dropped is said even if nothing more comes.
func TestDroppedIsToldInTime(t *testing.T) {
	t.Parallel()
	s := spec("flood-wait", "5000")
	told, began := make(chan string, 10000), time.Now()
	s.Stderr = func(line string) { told <- line }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		dropped, handed := 0, 0
		for handed+dropped < 5000 {
			select {
			case line := <-told:
				n := 0
				if _, err := fmt.Sscanf(line, "[dropped %d lines", &n); err == nil {
					dropped += n
				} else {
					handed++
				}
			case <-time.After(10 * time.Second):
				return fmt.Errorf("%d lines handed on, %d dropped", handed, dropped)
			}
		}
		took := time.Since(began)
		if handed < 1000 || handed > 1500+int(200*took.Seconds()) {
			t.Errorf("%d lines handed on within %s", handed, took)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each line is handed on when it comes and in order, however often there is a pause.
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
				case <-time.After(10 * time.Second):
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

// A process that says nothing has three goroutines: Run's, use's and the one that waits for stderr.
func TestIdleGoroutines(t *testing.T) {
	noSurvivors(t)
	s := spec("echo-stderr")
	said := make(chan string, 1)
	s.Stderr = func(line string) { said <- line }
	err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
		fmt.Fprintln(p.Stdin, "hello")
		<-said
		var ours []string
		eventually(t, "three goroutines", func() bool {
			ours = nil
			for g := range strings.SplitSeq(stacks(), "\n\n") {
				if strings.Contains(g, "internal/child.") && !strings.Contains(g, "reapOrphans") {
					ours = append(ours, g)
				}
			}
			return len(ours) == 3
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
