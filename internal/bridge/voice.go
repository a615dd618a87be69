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
func (s *slot) stderr(line string) {
	s.lines.add(line)
	s.log.Info(line, "stream", "stderr")
	record := logLine{ID: s.unit.id(), Instance: s.mesh.Instance(), TS: time.Now().UTC(), Line: line}
	if record.Dropped = droppedLines(line); record.Dropped > 0 {
		record.Line = ""
	}
	s.toMesh(record)
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
func (s *slot) noise(line []byte, why error) {
	if !s.noisy.allow(time.Now()) {
		return
	}
	s.log.Warn("noise on standard output", "line", s.unit.clean(string(line[:min(len(line), maxNoise+margin+1)]), maxNoise), "error", why)
}

// maxNoise is how much of a line of noise is logged.
const maxNoise = 200

// notification passes progress on to whoever asked for it, and publishes everything else as an event of the
// extension. Of a flood it drops what is too much, and says so.
func (s *slot) notification(f *forwarder, method string, params []byte) {
	if method == "notifications/tools/list_changed" {
		f.relisting.ask()
	}
	if now := time.Now(); !s.vocal.allow(now) {
		s.past.droppedEvent()
		if s.noisy.allow(now) {
			s.log.Warn("notifications are dropped, they come too fast", "method", s.unit.clean(method, maxNoise))
		}
		return
	}
	if method == "notifications/progress" && f.progress.deliver(params) {
		return
	}
	if err := s.events(rpc.AppendRequest(nil, nil, method, params)); err != nil {
		s.log.Debug("an event was not published", "method", method, "error", err)
	}
}

// margin is how much is looked at beyond what is shown, so that something is left to show behind known secrets, and
// behind what may be the beginning of one.
const margin = 4 << 10

// clean makes text in which an extension had a hand fit to be shown: known secrets replaced, one line of valid
// UTF-8, at most n bytes of it; "…" says that there was more.
func (u *unit) clean(text string, n int) string {
	whole := len(text) <= n+margin
	text = strings.ToValidUTF8(text[:min(len(text), n+margin)], "\uFFFD")
	switch {
	case !whole:
		text = gate.RedactCut(u.redact, text)
	case u.redact != nil:
		text = u.redact(text)
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
