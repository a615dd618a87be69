package bridge

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// stderr takes one line of the child's.
func (s *instance) handleStderr(line string) {
	s.lines.add(line)
	s.log.Info(line, "stream", "stderr")
	record := logLine{ID: s.workload.id(), Instance: s.mesh.Instance(), TS: time.Now().UTC(), Line: line}
	if record.Dropped = droppedLines(line); record.Dropped > 0 {
		record.Line = ""
	}
	s.publishLog(record)
}

// droppedLines is how many lines package child says with this one that it had to drop; 0 for any other.
func droppedLines(line string) (n int) {
	if _, err := fmt.Sscanf(line, "[dropped %d lines of stderr: too many]", &n); err != nil {
		return 0
	}
	return n
}

// noise takes a line of the child's output that is no message. clean gets one byte more than it looks at, so that it
// knows of the rest.
func (s *instance) handleNoise(f *forwarder, line []byte, why error) {
	first := f.handshake.Load() == nil && f.firstNoise.Load() == nil && len(line) > 0
	logged := s.noiseLimit.allow(time.Now())
	if !first && !logged {
		return
	}
	text := s.workload.clean(string(line[:min(len(line), maxNoise+cleanMargin+1)]), maxNoise)
	if first {
		f.firstNoise.Store(&text)
	}
	if logged {
		s.log.Warn("noise on standard output", "line", text, "error", why)
	}
}

// plainWords replaces what Go's libraries say of the end of a connection or of a time. What a child wrote to stderr, at the
// end of the text, stays as it is.
func plainErrorText(text string) string {
	ours, stderr, found := strings.Cut(text, ", stderr: ")
	ours = goErrorTexts.Replace(ours)
	if before, ok := strings.CutSuffix(ours, "EOF"); ok && (before == "" || strings.HasSuffix(before, ": ")) {
		ours = before + "the connection was closed"
	}
	if found {
		return ours + ", stderr: " + stderr
	}
	return ours
}

var goErrorTexts = strings.NewReplacer(
	"context deadline exceeded", "the time was over",
	"context canceled", "it was cancelled",
	"i/o timeout", "the time was over",
	"unexpected EOF", "the connection was closed in the middle of a message",
	"read |0: file already closed", "its standard output is closed",
	"write |1: file already closed", "its standard input is closed",
	"write |1: broken pipe", "it closed its standard input",
	"broken pipe", "the other side has closed the connection",
	"use of closed network connection", "the connection was closed",
)

// maxNoise is how much of a line of noise is logged.
const maxNoise = 200

// notification passes progress on to whoever asked for it, and publishes everything else as an event of the
// extension. Of a flood it drops what is too much, and says so.
func (s *instance) handleNotification(f *forwarder, method string, params []byte) {
	if method == "notifications/tools/list_changed" {
		f.relist.request()
	}
	if now := time.Now(); !s.eventLimit.allow(now) {
		s.history.droppedEvent()
		if s.noiseLimit.allow(now) {
			s.log.Warn("notifications are dropped, they come too fast", "method", s.workload.clean(method, maxNoise))
		}
		return
	}
	if method == "notifications/progress" && f.progress.deliver(params) {
		return
	}
	if err := s.publishEvent(rpc.AppendRequest(nil, nil, method, params)); err != nil {
		s.log.Debug("an event was not published", "method", method, "error", err)
	}
}

// margin is how much is looked at beyond what is shown, so that something is left to show behind known secrets, and
// behind what may be the beginning of one.
const cleanMargin = 4 << 10

// clean makes text in which an extension had a hand fit to be shown: known secrets replaced, one line of valid
// UTF-8, at most n bytes of it; "…" says that there was more.
func (w *workload) clean(text string, n int) string {
	whole := len(text) <= n+cleanMargin
	text = strings.ToValidUTF8(text[:min(len(text), n+cleanMargin)], "\uFFFD")
	switch {
	case !whole:
		text = gate.RedactCut(w.redact, text)
	case w.redact != nil:
		text = w.redact(text)
	}
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
	if whole && len(text) <= n {
		return text
	}
	for n = min(len(text), n-len("…")); n > 0 && n < len(text) && !utf8.RuneStart(text[n]); {
		n--
	}
	return text[:n] + "…"
}
