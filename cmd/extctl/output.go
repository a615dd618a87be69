package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// header is the first member of every JSON object that extctl prints.
type header struct {
	SchemaVersion schemaVersion `json:"schema_version"`
}

// schemaVersion is always 1, also in its zero value.
type schemaVersion struct{}

// MarshalJSON writes the version.
func (schemaVersion) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

// printJSON prints v on a line of its own.
func (a *app) printJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return a.writeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// writeJSON writes JSON that may contain text from the mesh, and ends the line. On a terminal, characters that could control
// it are escaped; anywhere else the bytes are unchanged. With -o yaml it writes the same as YAML.
func (a *app) writeJSON(text []byte) error {
	var err error
	switch {
	case a.yaml:
		text, err = yamlOf(text)
	case daemon.IsTerminal(a.stdout):
		text = append(escapeJSON(text), '\n')
	default:
		text = append(text[:len(text):len(text)], '\n')
	}
	if err == nil {
		_, err = a.stdout.Write(text)
	}
	return err
}

// escapeJSON writes control characters (also the C1 ones, U+0080 to U+009F), those that change the direction of text, and
// others that do not print as \u escapes, so that the JSON means the same. Line breaks and tabs, which JSON has between its
// values, stay.
func escapeJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(out, `\ufffd`...)
		case r == '\r': // between values: in a string it is escaped already
			out = append(out, ' ')
		case r == '\n', r == '\t', unicode.IsPrint(r), unicode.Is(unicode.Zs, r), r == zeroWidthJoiner, r == zeroWidthNonJoiner:
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

// Two characters that do not print and are harmless: emoji and several scripts need them.
const (
	zeroWidthNonJoiner = '\u200c'
	zeroWidthJoiner    = '\u200d'
)

// clean makes text from the mesh safe for a terminal: a tool's description must not contain escape sequences.
func clean(s string) string {
	if plain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// plain reports whether s has only printable ASCII characters, as most text has.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// cleanLines is clean for a message of several lines. It indents all but the first, so that none of them can imitate a
// message of extctl.
func cleanLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		lines[i] = clean(l)
	}
	return strings.Join(lines, "\n    ")
}

// short is the first line of s, cleaned, and cut to n characters.
func short(s string, n int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if start := s[:min(len(s), n)]; plain(start) { // the usual case
		if len(s) == len(start) {
			return s
		}
		return start[:n-1] + "…"
	}
	s = clean(s)
	if utf8.RuneCountInString(s) > n {
		s = string([]rune(s)[:n-1]) + "…"
	}
	return s
}

// table prints aligned columns, on a terminal only as wide as it is. Some columns are coloured; see paintCell.
type table struct {
	names  []string
	rows   [][]string
	colour bool
	width  int // of the terminal, to which the columns are fitted; 0 if there is none
	limit  int // of the last column, without a terminal; 0: none
}

func (a *app) newTable(names ...string) *table {
	return &table{names: names, colour: a.colour(), width: terminalWidth(a.stdout)}
}

// colour reports whether to colour stdout: it is a terminal and NO_COLOR is not set.
func (a *app) colour() bool {
	return a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && daemon.IsTerminal(a.stdout)
}

func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
		if cells[i] == "" {
			cells[i] = "-"
		}
	}
	t.rows = append(t.rows, cells)
}

func (t *table) print(w io.Writer) error {
	if t.width == 0 && t.limit > 0 {
		for _, row := range t.rows {
			row[len(row)-1] = cut(row[len(row)-1], t.limit)
		}
	}
	width := make([]int, len(t.names))
	for _, row := range append([][]string{t.names}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	if t.width > 0 {
		width = fitColumns(width, t.width)
	}
	b := bufio.NewWriter(w)
	t.line(b, t.names, width, false)
	for _, row := range t.rows {
		t.line(b, row, width, t.colour)
	}
	return b.Flush()
}

func (t *table) line(w *bufio.Writer, row []string, width []int, colour bool) {
	for i, cell := range row {
		cell = cut(cell, width[i])
		pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
		if i == len(row)-1 {
			pad = ""
		} else {
			pad += "  "
		}
		if colour {
			cell = paintCell(t.names[i], cell)
		}
		w.WriteString(cell) // Flush returns the error
		w.WriteString(pad)
	}
	w.WriteByte('\n')
}

// paintCell colours a state, and a number of instances if not all are ready.
func paintCell(column, cell string) string {
	switch ready, all, _ := strings.Cut(cell, "/"); {
	case column == "STATE":
		return paint(cell)
	case column == "INSTANCES" && ready != all:
		return yellow + cell + noColour
	}
	return cell
}

const (
	red      = "\x1b[31m"
	green    = "\x1b[32m"
	yellow   = "\x1b[33m"
	noColour = "\x1b[0m"
)

// paint colours a state, or a text that begins with one: green if ready, yellow in transition, red if it does not work.
func paint(state string) string {
	first, _, _ := strings.Cut(state, " ")
	colour := ""
	switch heartbeat.State(first) {
	case heartbeat.Ready:
		colour = green
	case heartbeat.Spawning, heartbeat.Restarting, heartbeat.Draining, levelWarn:
		colour = yellow
	case heartbeat.Failed, heartbeat.Lost, heartbeat.Gated, levelError:
		colour = red
	default:
		return state
	}
	return colour + state + noColour
}

// plural is "1 tool", "2 tools".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
