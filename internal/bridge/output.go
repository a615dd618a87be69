package bridge

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
)

// handleStderr handles one line of the child's standard error.
func (s *instance) handleStderr(line string) {
	s.log.Info(line, "stream", "stderr")
	s.keepLine(line, "", droppedLines(line))
}

// keepLine stores and publishes a line for extctl logs. dropped is the number of lines that it replaces.
func (s *instance) keepLine(line, stream string, dropped int) {
	l := Line{At: time.Now().UTC(), Text: line, Stream: stream, Dropped: dropped}
	s.lines.add(l)
	s.publishLine(s.logLine(l))
}

// logLine is a line as it is returned and published.
func (s *instance) logLine(l Line) logLine {
	a := s.mesh.Announced()
	out := logLine{ID: a.ID, Bridge: a.Bridge, Replica: a.Replica, Instance: s.mesh.Instance(), TS: l.At, Stream: l.Stream, Line: l.Text, Dropped: l.Dropped}
	if l.Dropped > 0 {
		out.Line = ""
	}
	return out
}

// droppedLines returns the number of dropped lines that package child reports with this line; 0 for other lines.
func droppedLines(line string) (n int) {
	const format = "[dropped %d lines of stderr: too many]"
	if _, err := fmt.Sscanf(line, format, &n); err != nil || line != fmt.Sprintf(format, n) {
		return 0
	}
	return n
}

// handleNoise handles a line of the child's standard output that is not a message: it is kept and published like a line of
// standard error, because many programs print there.
func (r *run) handleNoise(line []byte, why error) {
	r.f.noise.add(line)
	first := r.f.handshake.Load() == nil && r.f.firstNoise.Load() == nil && len(line) > 0
	logged, kept := r.inst.noise.allow(time.Now())
	if !first && !kept {
		return
	}
	text := r.inst.cleanNoise(line, maxNoise)
	if first {
		r.f.firstNoise.Store(&text)
	}
	if logged {
		r.inst.log.Warn("noise on standard output; print to standard error instead", "line", text, "error", why)
	}
	if !kept || len(line) == 0 {
		return
	}
	r.inst.reportDropped(r.inst.keepLine)
	r.inst.keepLine(r.inst.cleanNoise(line, maxNoiseLine), streamStdout, 0)
}

// reportDropped keeps a record of the lines of standard output that were dropped since the last one.
func (s *output) reportDropped(keep func(text, stream string, dropped int)) {
	if n := s.noise.dropped; n > 0 {
		s.noise.dropped = 0
		keep(fmt.Sprintf("[dropped %d lines of stdout: too many]", n), streamStdout, n)
	}
}

// streamStdout marks a line of standard output that is not a message, and streamLog a log message of an MCP server. Lines of
// standard error have no mark.
const (
	streamStdout = "stdout"
	streamLog    = "log"
)

// errorLevel is the level from which log messages are kept.
var errorLevel = mcp.ParseLogLevel([]byte(`"error"`))

// keepMessage keeps and publishes a log message of a child that reports an error like a line of standard error: some programs
// report only in this way why they end.
func (r *run) keepMessage(params []byte) {
	if r.f.noise == nil || !errorLevel.Admits(params) { // absent over HTTP
		return
	}
	logged, kept := r.inst.noise.allow(time.Now())
	var m struct {
		Level string          `json:"level"`
		Data  json.RawMessage `json:"data"`
	}
	if !kept || json.Unmarshal(params, &m) != nil {
		return
	}
	var text string
	if json.Unmarshal(m.Data, &text) != nil {
		text = string(m.Data)
	}
	line := []byte(m.Level + ": " + text)
	r.f.noise.setMessage(line)
	if logged {
		r.inst.log.Info(r.inst.cleanNoise(line, maxNoise), "stream", streamLog)
	}
	r.inst.reportDropped(r.inst.keepLine)
	r.inst.keepLine(r.inst.cleanNoise(line, maxNoiseLine), streamLog, 0)
}

// cleanNoise makes at most n bytes of a line safe to show. It passes clean one byte more than clean reads, so that clean
// can see that the text was cut.
func (s *instance) cleanNoise(line []byte, n int) string {
	return s.workload.clean(string(line[:min(len(line), n+cleanMargin+1)]), n)
}

// noiseLimits limit what is kept of a child's log messages, and of its standard output that is not messages.
type noiseLimits struct {
	log, keep *rate.Limiter
	dropped   int // lines that were not kept since the last one
}

// newNoiseLimits allows fewer lines in the bridge's log, which all extensions of a host share.
func newNoiseLimits() noiseLimits {
	return noiseLimits{log: rate.NewLimiter(2, 20), keep: rate.NewLimiter(50, 200)}
}

// allow reports whether a line may be logged, and whether it may be kept. It counts the others.
func (l *noiseLimits) allow(now time.Time) (logged, kept bool) {
	logged, kept = l.log.AllowN(now, 1), l.keep.AllowN(now, 1)
	if !kept {
		l.dropped++
	}
	return logged, kept
}

// noiseTail keeps the last lines of a child's output that were not messages, and its last log message: a program that ends may
// have written there why. The zero value is empty.
type noiseTail struct {
	mu      sync.Mutex
	lines   [16][]byte // a ring; next is overwritten next
	next    int
	message []byte
	logged  time.Time // when message came
}

// messageAge is how long a log message may be the reason of an end. Many servers also report each call that fails.
const messageAge = 10 * time.Second

func (t *noiseTail) setMessage(line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.message, t.logged = append(t.message[:0], line[:min(len(line), maxNoiseLine)]...), time.Now()
}

// maxNoiseLine is how many bytes of a line are kept. The end of a longer one is not used (see gate.RedactCut).
const maxNoiseLine = 4 << 10

func (t *noiseTail) add(line []byte) {
	if t == nil { // absent over HTTP
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines[t.next] = append(t.lines[t.next][:0], line[:min(len(line), maxNoiseLine)]...)
	t.next = (t.next + 1) % len(t.lines)
}

// texts returns the lines, oldest first, and the message, without secrets.
func (t *noiseTail) texts(redact func(string) string) (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Concat(t.lines[t.next:], t.lines[:t.next])
	if time.Since(t.logged) < messageAge {
		all = append(all, t.message)
	}
	for _, line := range all {
		switch line := string(line); {
		case line == "":
		case len(line) == maxNoiseLine || redact == nil:
			out = append(out, gate.RedactCut(redact, line))
		default:
			out = append(out, redact(line))
		}
	}
	return out
}

// plainErrorText replaces the texts of Go's standard library for closed connections and timeouts. The child's output, at
// the end of the text, is not changed.
func plainErrorText(text string) string {
	ours, output := text, ""
	if at := childOutput.FindStringIndex(text); at != nil {
		ours, output = text[:at[0]], text[at[0]:]
	}
	ours = goErrorTexts.Replace(ours)
	if before, ok := strings.CutSuffix(ours, "EOF"); ok && (before == "" || strings.HasSuffix(before, ": ")) {
		ours = before + "the connection was closed"
	}
	return ours + output
}

// childOutput begins the part of an ExitError's text that the child has written.
var childOutput = regexp.MustCompile(", std(err|out): ")

var goErrorTexts = strings.NewReplacer(
	"context deadline exceeded", "timed out",
	"context canceled", "it was cancelled",
	"i/o timeout", "timed out",
	"unexpected EOF", "the connection was closed in the middle of a message",
	"read |0: file already closed", "its standard output is closed",
	"write |1: file already closed", "its standard input is closed",
	"write |1: broken pipe", "it closed its standard input",
	"broken pipe", "the other side has closed the connection",
	"use of closed network connection", "the connection was closed",
)

// maxNoise is how many bytes of a line of noise are logged.
const maxNoise = 200

// handleNotification delivers progress to the caller that requested it, and publishes every other notification as an
// event of the extension. If there are too many, it drops and counts them.
func (r *run) handleNotification(method string, params []byte) {
	switch method {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed":
		r.f.relist.send()
	}
	if now := time.Now(); !r.inst.eventLimit.AllowN(now, min(eventBurst, 1+len(params)/eventSize)) {
		r.inst.history.droppedEvent()
		if r.inst.noise.log.AllowN(now, 1) {
			r.inst.log.Warn("notifications dropped: too many per second", "method", r.inst.workload.clean(method, maxNoise))
		}
		return
	}
	if method == "notifications/progress" {
		r.f.progress.deliver(params)
		return
	}
	if method == "notifications/message" {
		r.f.messages.deliver(params)
		r.keepMessage(params)
	}
	if err := r.inst.publishEvent(jsonrpc.AppendRequest(nil, nil, method, params)); err != nil {
		r.inst.log.Debug("an event was not published", "method", method, "error", err)
	}
}

// cleanMargin is how many bytes clean reads in addition to those shown, so that enough remains to be shown after known
// secrets, and what may be the beginning of one, have been replaced.
const cleanMargin = 4 << 10

// clean makes text that an extension may have influenced safe to show: known secrets are replaced, and the result is one
// line of valid UTF-8 with at most n bytes. It ends with "…" if text was longer.
func (w *workload) clean(text string, n int) string {
	whole := len(text) <= n+cleanMargin
	text = strings.ToValidUTF8(text[:min(len(text), n+cleanMargin)], "\uFFFD")
	redact := w.redact
	if w.files != nil {
		for i := range w.files.secrets {
			switch now, before := w.files.secrets[i].Load(), redact; {
			case now == nil:
			case before == nil:
				redact = *now
			default:
				redact = func(text string) string { return (*now)(before(text)) }
			}
		}
	}
	switch {
	case !whole:
		text = gate.RedactCut(redact, text)
	case redact != nil:
		text = redact(text)
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
