package manifest

import (
	"strings"

	"github.com/BurntSushi/toml"
)

// scanner finds where the keys of a TOML text stand. The decoder knows, but tells only in an error, one at a
// time and at a cost that grows with the file, so that all faults of a manifest could not be placed that way.
// It runs before the decoder and keeps from it what is over the limits of a tree.
//
// It checks no more syntax than it needs to find its way, and stops where it loses it; file.decodeTOML then
// has the decoder say what is wrong there.
type scanner struct {
	*file
	i    int   // the next byte
	over error // the limit that stopped it
}

// scan records the positions of all keys in f.pos. It returns how far it came, and the limit that stopped it
// there, if one did.
func (f *file) scan() (end int, over error) {
	s := scanner{file: f}
	table := ""
	for s.skip(true); s.i < len(s.text); s.skip(true) {
		ok := false
		if s.text[s.i] == '[' {
			table, ok = s.header()
		} else {
			ok = s.pair(table, 0)
		}
		if !ok || !s.lineEnd() {
			return s.i, s.over
		}
	}
	return s.i, nil
}

// header is [a.b] or [[a.b]]; an array of tables has no place in a manifest, so its elements share a path.
func (s *scanner) header() (path string, ok bool) {
	open := s.run("[", 2)
	path, ok = s.key("")
	return path, ok && s.run("]", open) == open
}

// pair is key = value in the table at path; depth counts the values around it.
func (s *scanner) pair(path string, depth int) bool {
	path, ok := s.key(path)
	if !ok || s.run("=", 1) != 1 {
		return false
	}
	s.blanks()
	return s.value(path, depth)
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
		path = join(path, part)
		s.blanks()
		more := s.i < len(s.text) && s.text[s.i] == '.'
		// A table may be named first in a deeper one's header and defined later: its definition wins.
		if _, seen := s.pos[path]; !seen || !more {
			if s.over = s.place(path, start); s.over != nil {
				s.i = start
				return "", false
			}
		}
		if !more {
			return path, true
		}
		s.i++
	}
	s.over = errDeep
	return "", false
}

// part is one part of a key: bare, "quoted" or 'quoted'.
func (s *scanner) part() (string, bool) {
	start := s.i
	if s.i < len(s.text) && (s.text[s.i] == '"' || s.text[s.i] == '\'') {
		if !s.line(s.text[s.i]) {
			return "", false
		}
		raw := s.text[start:s.i]
		if raw[0] == '\'' || !strings.Contains(raw, `\`) {
			return raw[1 : len(raw)-1], true
		}
		// Escapes are rare in keys; the decoder's own reading of them is the right one.
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
		s.over = errDeep
		return false
	}
	if s.i == len(s.text) {
		return false
	}
	switch c := s.text[s.i]; c {
	case '"', '\'':
		if three := strings.Repeat(string(c), 3); strings.HasPrefix(s.text[s.i:], three) {
			return s.lines3(three)
		}
		return s.line(c)
	case '[':
		return s.list(']', func(i int) bool {
			p := path
			if i < maxElements && s.place(element(path, i), s.i) == nil {
				p = element(path, i)
			}
			return s.value(p, depth+1)
		})
	case '{':
		return s.list('}', func(int) bool { return s.pair(path, depth+1) })
	}
	// A number, a boolean or a date ends where the next thing begins.
	n := strings.IndexAny(s.text[s.i:], ",]}#\n")
	if n < 0 {
		n = len(s.text) - s.i
	}
	s.i += n
	return n > 0
}

// list is an array or an inline table: items with commas between them, over any number of lines.
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

// line is a string on one line; backslashes escape between double quotes only.
func (s *scanner) line(quote byte) bool {
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

// lines3 is a string between three quotes each; up to two more quotes may stand before the closing three.
func (s *scanner) lines3(three string) bool {
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

// run skips up to n of the byte c and returns how many there were.
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

// skip skips blanks and a comment, and with lines all blank lines and comments up to the next thing.
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

// lineEnd reports whether nothing but a comment follows on the line.
func (s *scanner) lineEnd() bool {
	s.skip(false)
	return s.i == len(s.text) || s.text[s.i] == '\n'
}
