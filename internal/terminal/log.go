package terminal

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// logHandler writes a log for people: time, level, extension, message, error, and the rest.
type logHandler struct {
	slog.Handler // decides which records are written
	w            io.Writer
	mu           *sync.Mutex // of w
	attrs        []slog.Attr
}

// NewLog makes a handler that writes a log to w for people. levels decides which records are written.
func NewLog(w io.Writer, levels slog.Handler) slog.Handler {
	return &logHandler{Handler: levels, w: w, mu: &sync.Mutex{}}
}

// Handle writes one line.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var subject, cause string
	var rest []string
	add := func(a slog.Attr) bool {
		switch value := a.Value.Resolve().String(); a.Key {
		case "extension":
			subject = value + ": "
		case "error":
			cause = ": " + value
		default:
			rest = append(rest, a.Key+" "+value)
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	line := fmt.Sprintf("%s  %-5s %s%s%s", r.Time.Format(time.TimeOnly), r.Level, subject, r.Message, cause)
	if len(rest) > 0 {
		line += " (" + strings.Join(rest, ", ") + ")"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := fmt.Fprintln(h.w, Clean(line))
	return err
}

// WithAttrs adds attributes to each line.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(c.attrs[:len(c.attrs):len(c.attrs)], attrs...)
	return &c
}

// WithGroup does not show groups.
func (h *logHandler) WithGroup(string) slog.Handler { return h }
