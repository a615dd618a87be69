package child

import (
	"fmt"
	"strings"

	"github.com/extmesh/extmesh/internal/gate"
)

// cleanLine prepares a line of output to be shown: as valid UTF-8, without terminal colours, redacted, and short. line is the part that was kept of
// size bytes.
func cleanLine(line string, size int, redact func(string) string) string {
	line = withoutEscapes(strings.ToValidUTF8(strings.TrimSuffix(line, "\r"), "\uFFFD"))
	kept := len(line)
	switch {
	case size >= maxErrLine+margin: // the rest was not kept
		line = gate.RedactCut(redact, line)
	case redact != nil:
		line = redact(line)
	}
	if kept <= maxErrLine && size <= maxErrLine {
		return line
	}
	return fmt.Sprintf("%s [cut: %d bytes]", cut(line, maxErrLine), size)
}

// cut returns at most the first n bytes of s, without breaking a character.
func cut(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}

// lastBytes returns at most the last n bytes of s, without breaking a character.
func lastBytes(s string, n int) string {
	return strings.ToValidUTF8(s[max(0, len(s)-n):], "")
}
