package terminal

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"testing"
	"time"
)

func TestLog(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(NewLog(&b, slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.Info("not shown")
	log.With("extension", "dice", "replica", 1).Warn("extension ended", "error", errors.New("exit status 3\x1b[31m"), "retry_in", time.Second)
	log.WithGroup("g").Error("failed")
	want := `^\d\d:\d\d:\d\d  WARN  dice: extension ended: exit status 3\?\[31m \(replica 1, retry_in 1s\)` + "\n" + `\d\d:\d\d:\d\d  ERROR failed` + "\n$"
	if !regexp.MustCompile(want).MatchString(b.String()) {
		t.Errorf("%q does not match %s", b.String(), want)
	}
}
