package natsd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// TestRefusedClients: a client that tries wrong credentials again and again does not fill the log.
func TestRefusedClients(t *testing.T) {
	var out bytes.Buffer
	l := &serverLog{logger: slog.New(slog.NewTextHandler(&out, nil)), refused: rate.Sometimes{Interval: time.Minute}}
	for range 10 {
		l.Errorf("%s - cid:%d - authentication error - User %q", "127.0.0.1:1", 5, "x")
		l.Errorf("disk %s", "full")
	}
	if log := out.String(); strings.Count(log, "authentication error") != 1 || strings.Count(log, "disk full") != 10 {
		t.Error(log)
	}
}
