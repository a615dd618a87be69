package document

import (
	"errors"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
)

// TOML decodes a TOML file. A syntax error is reported alone, with its position.
func (d *Doc) TOML() (*Table, bool) {
	d.words = words{"an integer", "a float", "an array", "a table", "a string in quotes",
		`an array of strings, such as ["a", "b"]`, "a table, such as [KEY]"}
	end, over := d.scan()
	if over != nil {
		d.FaultAt(end, "%v", over)
		return nil, false
	}
	text := d.text
	if end < len(text) {
		// The scanner stopped in this line. The decoder gets only text that the scanner has checked for the limits.
		if n := strings.IndexByte(text[end:], '\n'); n >= 0 {
			text = text[:end+n+1]
		}
	}
	tree, err := decodeTOML(text)
	if syntax, ok := errors.AsType[toml.ParseError](err); ok {
		d.FaultAt(syntax.Position.Start, "syntax: %s", syntaxMessage(syntax.Message))
	} else if err != nil {
		d.Fault("", "%v", err)
	} else if end < len(d.text) {
		d.FaultAt(end, "syntax: expected a key, a value or the end of the line")
	}
	if d.Faults > 0 {
		return nil, false
	}
	return d.root(tree, 0)
}

// valueShown matches the decoder's messages that contain a value, which may be a password without quotes.
var valueShown = regexp.MustCompile(`(?i)^(expected value but|invalid (integer|float|datetime|toml)|cannot use sign|not an? )`)

// syntaxMessage returns the decoder's message without values.
func syntaxMessage(message string) string {
	if valueShown.MatchString(message) {
		return "the value is not valid here; a string is written in quotes"
	}
	if strings.Contains(message, "out of range") {
		return "the number is out of range"
	}
	if wanted, _, ok := strings.Cut(message, ", but got "); ok && strings.Contains(wanted, "hexadecimal digits") { // it has the whole string
		return wanted
	}
	return Clip(message, 4*maxShown)
}

// decodeTOML decodes into plain maps. Decoding into Go types would stop at the first value of a wrong type and could
// not distinguish an absent key from an empty one.
func decodeTOML(text string) (tree map[string]any, err error) {
	defer guard(&err)
	_, err = toml.Decode(text, &tree)
	return tree, err
}

// scanner finds the positions of the keys of a TOML text. The decoder reports positions only in errors, one at a time
// and at a cost that grows with the file, so it cannot give the positions of all faults. The scanner runs before the
// decoder and enforces the limits of a tree.
//
// It checks only as much syntax as it needs to find the keys, and stops where it fails; TOML then gets the error from
// the decoder.
type scanner struct {
	*Doc
	i    int   // the next byte
	over error // the limit that was exceeded
}

// statement is a table's header or a key with its value, including its lines.
type statement struct {
	start, end int
	path       string // with the table's
	header     bool
}

// scan records the statements and the positions of all keys. It returns the offset where it stopped, and the limit that
// was exceeded there, if any.
func (d *Doc) scan() (end int, over error) {
	s := scanner{Doc: d}
	table := ""
	for s.skip(true); s.i < len(s.text); s.skip(true) {
		st, ok := statement{start: lineStart(s.text, s.i), header: s.text[s.i] == '['}, false
		if st.header {
			table, ok = s.header()
			st.path = table
		} else {
			st.path, ok = s.pair(table, 0)
		}
		if !ok || !s.lineEnd() {
			return s.i, s.over
		}
		st.end = min(s.i+1, len(s.text))
		d.statements = append(d.statements, st)
	}
	return s.i, nil
}

// header reads [a.b] or [[a.b]]. The elements of an array of tables share a path, because manifests have none.
func (s *scanner) header() (path string, ok bool) {
	open := s.run("[", 2)
	path, ok = s.key("")
	return path, ok && s.run("]", open) == open
}

// pair reads key = value in a table and returns the path of the key; depth counts the values around it.
func (s *scanner) pair(table string, depth int) (path string, ok bool) {
	path, ok = s.key(table)
	if !ok || s.run("=", 1) != 1 {
		return "", false
	}
	s.blanks()
	return path, s.value(path, depth)
}

// key reads a dotted key below path and records each of its parts.
func (s *scanner) key(path string) (string, bool) {
	for range maxNesting {
		s.blanks()
		start := s.i
		part, ok := s.part()
		if !ok {
			s.i = start
			return "", false
		}
		path = Join(path, part)
		s.blanks()
		more := s.i < len(s.text) && s.text[s.i] == '.'
		// A table may first appear in a deeper table's header and be defined later: the definition's position is used.
		if _, seen := s.keys[path]; !seen || !more {
			if s.over = s.setPos(path, start, start); s.over != nil {
				s.i = start
				return "", false
			}
		}
		if !more {
			return path, true
		}
		s.i++
	}
	s.over = ErrDeep
	return "", false
}

// part reads one part of a key: bare, "quoted" or 'quoted'.
func (s *scanner) part() (string, bool) {
	start := s.i
	if s.i < len(s.text) && (s.text[s.i] == '"' || s.text[s.i] == '\'') {
		if !s.singleLine(s.text[s.i]) {
			return "", false
		}
		raw := s.text[start:s.i]
		if raw[0] == '\'' || !strings.Contains(raw, `\`) {
			return raw[1 : len(raw)-1], true
		}
		// Escapes are rare in keys, so the decoder can decode them.
		var k struct{ K string }
		_, err := toml.Decode("K="+raw, &k)
		return k.K, err == nil
	}
	for s.i < len(s.text) && bareByte(s.text[s.i]) {
		s.i++
	}
	return s.text[start:s.i], s.i > start
}

// value skips a value and records the keys and elements in it.
func (s *scanner) value(path string, depth int) bool {
	if depth > maxNesting {
		s.over = ErrDeep
		return false
	}
	if s.i == len(s.text) {
		return false
	}
	switch c := s.text[s.i]; c {
	case '"', '\'':
		if three := strings.Repeat(string(c), 3); strings.HasPrefix(s.text[s.i:], three) {
			return s.multiLine(three)
		}
		return s.singleLine(c)
	case '[':
		return s.list(']', func(i int) bool {
			p := path
			if i < maxElements && s.setPos(Element(path, i), s.i, s.i) == nil {
				p = Element(path, i)
			}
			return s.value(p, depth+1)
		})
	case '{':
		return s.list('}', func(int) bool {
			_, ok := s.pair(path, depth+1)
			return ok
		})
	}
	// A number, a boolean or a date ends where the next thing begins.
	n := strings.IndexAny(s.text[s.i:], ",]}#\n")
	if n < 0 {
		n = len(s.text) - s.i
	}
	s.i += n
	return n > 0
}

// list reads an array or an inline table: items with commas between them, over any number of lines.
func (s *scanner) list(end byte, item func(i int) bool) bool {
	s.i++
	for i := 0; ; i++ {
		if s.skip(true); s.i < len(s.text) && s.text[s.i] == end {
			s.i++
			return true
		}
		if s.i == len(s.text) || !item(i) {
			return false
		}
		if s.skip(true); s.i < len(s.text) && s.text[s.i] == ',' {
			s.i++
		} else if s.i == len(s.text) || s.text[s.i] != end {
			return false
		}
	}
}

// singleLine reads a string on one line; backslashes escape only in double quotes.
func (s *scanner) singleLine(quote byte) bool {
	for s.i++; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; {
		case c == quote:
			s.i++
			return true
		case c == '\n':
			return false
		case c == '\\' && quote == '"':
			s.i++
		}
	}
	s.i = len(s.text) // past it, if the last byte was a backslash
	return false
}

// multiLine reads a string in triple quotes; up to two more quotes may precede the closing three.
func (s *scanner) multiLine(three string) bool {
	for s.i += 3; s.i < len(s.text); s.i++ {
		if s.text[s.i] == '\\' && three[0] == '"' {
			s.i++
		} else if strings.HasPrefix(s.text[s.i:], three) {
			s.i += 3
			s.run(three[:1], 2)
			return true
		}
	}
	s.i = len(s.text)
	return false
}

// run skips up to n of the byte c and returns how many it skipped.
func (s *scanner) run(c string, n int) int {
	k := 0
	for k < n && strings.HasPrefix(s.text[s.i:], c) {
		s.i++
		k++
	}
	return k
}

func (s *scanner) blanks() {
	for s.i < len(s.text) && (s.text[s.i] == ' ' || s.text[s.i] == '\t') {
		s.i++
	}
}

// skip skips white space and a comment and, with lines, all blank lines and comments.
func (s *scanner) skip(lines bool) {
	for s.i < len(s.text) {
		switch s.text[s.i] {
		case ' ', '\t', '\r':
			s.i++
		case '#':
			if n := strings.IndexByte(s.text[s.i:], '\n'); n >= 0 {
				s.i += n
			} else {
				s.i = len(s.text)
			}
		case '\n':
			if !lines {
				return
			}
			s.i++
		default:
			return
		}
	}
}

// lineEnd reports whether the rest of the line is empty or a comment.
func (s *scanner) lineEnd() bool {
	s.skip(false)
	return s.i == len(s.text) || s.text[s.i] == '\n'
}
