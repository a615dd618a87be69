package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestArgumentsOfPipe: the arguments are read before the time of the call begins, and a signal ends the reading. The file is a
// named pipe: its other end opens when it is read.
func TestArgumentsOfPipe(t *testing.T) {
	t.Parallel()
	for _, verb := range [][]string{{"call", "x/y"}, {"hook", "fire", "x"}, {"bench", "x/y"}} {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		code := make(chan int, 1)
		go func() { // ends with ctx
			got, _, _ := extctl(ctx, "nats://127.0.0.1:1", append(verb, "@"+pipe)...)
			code <- got
		}()
		opened := make(chan *os.File, 1)
		go func() { // ends when the pipe is opened, at the latest below
			w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
			}
			opened <- w
		}()
		select {
		case w := <-opened:
			defer w.Close()
		case got := <-code:
			t.Errorf("%v: exit code %d before the file was read", verb, got)
			if r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				(<-opened).Close()
				r.Close()
			}
			continue
		}
		interrupt()
		select {
		case got := <-code:
			if got != exitInterrupted {
				t.Errorf("%v: exit code %d after a signal", verb, got)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%v: a signal does not end the reading", verb)
		}
	}
}
