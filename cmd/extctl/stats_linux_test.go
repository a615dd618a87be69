package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTop draws on a terminal.
func TestTop(t *testing.T) {
	t.Parallel()
	b, _, _ := pastBed(t)
	master, tty := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 4, Col: 70}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { // ends with cancel
		done <- run(ctx, []string{"top", "--watch", "100ms", "--server", b.url}, nil, tty, os.Stderr, func(string) string { return "" })
	}()
	var text strings.Builder
	for buf := make([]byte, 4096); strings.Count(text.String(), "\x1b[H\x1b[2J") < 3; {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(buf[:n])
	}
	cancel()
	if code := <-done; code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	frames := strings.Split(text.String(), "\x1b[H\x1b[2J")
	for _, frame := range frames[1:3] {
		lines := strings.Split(strings.ReplaceAll(frame, "\r", ""), "\n")
		if len(lines) != 4 || len([]rune(lines[0])) > 70 || len([]rune(lines[1])) > 70 || !strings.HasPrefix(lines[1], "EXTEN") {
			t.Errorf("%q", lines)
		}
	}
	if !strings.Contains(frames[1], "since their start") || !strings.Contains(frames[2], "CALLS/S") {
		t.Errorf("%q", frames)
	}
}
