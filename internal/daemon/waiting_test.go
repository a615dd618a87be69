package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A program that waits logs why, again when the reason changes, and otherwise every 30 s: neither only once nor at
// every attempt.
func TestWaitingIsLogged(t *testing.T) {
	var log bytes.Buffer
	w := &waiting{logger: slog.New(slog.NewTextHandler(&log, nil)), server: "nats://x:4222"}
	refused, denied := errors.New("connection refused"), errors.New("authorization violation")
	start := time.Now()
	for _, tt := range []struct {
		at     time.Duration
		err    error
		logged bool
	}{
		{0, nats.ErrNoServers, false}, // nats.go's error without a reason
		{0, nil, false},
		{100 * time.Millisecond, refused, true},
		{10 * time.Second, refused, false},
		{10 * time.Second, nats.ErrNoServers, false},
		{20 * time.Second, denied, true},
		{40 * time.Second, denied, false},
		{50 * time.Second, denied, true},
		{51 * time.Second, refused, true},
		{5 * time.Minute, refused, true},
	} {
		log.Reset()
		w.failed(tt.err, start.Add(tt.at))
		want := fmt.Sprintf("server=nats://x:4222 error=%q\n", fmt.Sprint(tt.err))
		if logged := log.Len() > 0; logged != tt.logged || logged && !strings.HasSuffix(log.String(), want) {
			t.Errorf("after %s, %v: %q, want a line: %t", tt.at, tt.err, log.String(), tt.logged)
		}
	}
}
