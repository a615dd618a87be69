package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/terminal"
)

// terminalLog writes the log of extctl up for people: time, level, extension, message, error, and the rest.
type terminalLog struct {
	slog.Handler // decides which records are written
	w            io.Writer
	mu           *sync.Mutex // of w
	attrs        []slog.Attr
}

func newTerminalLog(w io.Writer, levels slog.Handler) *terminalLog {
	return &terminalLog{Handler: levels, w: w, mu: &sync.Mutex{}}
}

// Handle writes one line.
func (h *terminalLog) Handle(_ context.Context, r slog.Record) error {
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
	_, err := fmt.Fprintln(h.w, terminal.Clean(line))
	return err
}

// WithAttrs adds attributes to each line.
func (h *terminalLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(c.attrs[:len(c.attrs):len(c.attrs)], attrs...)
	return &c
}

// WithGroup does not show groups.
func (h *terminalLog) WithGroup(string) slog.Handler { return h }
