// Package terminal makes text readable and safe on a terminal: it removes what could control the terminal, fits tables to
// its width, and quotes words for its shell.
package terminal

import (
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// Clean makes text from the mesh safe for a terminal: a tool's description must not contain escape sequences.
func Clean(s string) string {
	if plain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case !prints(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// prints reports whether a character cannot control a terminal or the direction of text. Two that do not print are harmless: emoji
// and several scripts need them.
func prints(r rune) bool {
	return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) || r == zeroWidthJoiner || r == zeroWidthNonJoiner
}

const (
	zeroWidthNonJoiner = '\u200c'
	zeroWidthJoiner    = '\u200d'
)

// plain reports whether s has only printable ASCII characters, as most text has.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// CleanLines is Clean for a message of several lines. It indents all but the first, so that none of them can imitate a
// message of extctl.
func CleanLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		lines[i] = Clean(strings.TrimSuffix(l, "\r"))
	}
	return strings.Join(lines, "\n    ")
}

// Short is the first line of s, cleaned, and cut to n characters.
func Short(s string, n int) string {
	s = FirstLine(s)
	if start := s[:min(len(s), n)]; plain(start) { // the usual case
		if len(s) == len(start) {
			return s
		}
		return start[:n-1] + "…"
	}
	s = Clean(s)
	if utf8.RuneCountInString(s) > n {
		s = string([]rune(s)[:n-1]) + "…"
	}
	return s
}

// FirstLine is the first line of a text without spaces around it.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// Cut shortens a cell to a width.
func Cut(cell string, width int) string {
	n, last := 0, 0 // last is where the last of width characters begins
	for i := range cell {
		if n < width {
			last = i
		} else if n == width {
			return cell[:last] + "…"
		}
		n++
	}
	return cell
}

// EscapeJSON writes control characters (also the C1 ones, U+0080 to U+009F), those that change the direction of text, and
// others that do not print as \u escapes, so that the JSON means the same. Line breaks and tabs, which JSON has between its
// values, stay.
func EscapeJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(out, `\ufffd`...)
		case r == '\r': // between values: in a string it is escaped already
			out = append(out, ' ')
		case r == '\n', r == '\t', prints(r):
			out = append(out, text[:size]...)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}

// ShellWord quotes a word for the shell if necessary. A path in the home directory, ~/…, stays one.
func ShellWord(s string) string {
	s = Clean(s)
	if rest, ok := strings.CutPrefix(s, "~/"); ok && rest != "" {
		return "~/" + ShellWord(rest)
	}
	if s != "" && !strings.ContainsAny(s, " \"'$`\\*?;&|<>(){}[]#~!") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Width is the width of a terminal in characters; 0 if out is not a terminal.
func Width(out any) int {
	width, _ := Size(out)
	return width
}

// Size is the size of a terminal in characters; 0 if out is not a terminal.
func Size(out any) (width, height int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}
