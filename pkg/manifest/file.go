package manifest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxFile is the maximum size in bytes of a manifest, a sidecar or a skill.
	MaxFile = 1 << 20

	maxNesting     = 16      // nested tables and arrays, and parts of one dotted key
	maxPath        = 256     // bytes of a key including all the tables around it
	maxKeys        = 1 << 15 // in a file, including elements of arrays
	maxElements    = 1 << 12 // elements of an array with their own position; later ones have the array's
	maxDiagnostics = 500     // per file; further ones are counted
	maxShown       = 64      // characters of a user's value in a message
)

// file is a text being parsed: the positions of its keys, and the findings so far. The rules do not depend on the
// syntax: TOML, JSON and YAML are all decoded to map[string]any, []any and scalars, with a position for each key
// path.
type file struct {
	path   string
	text   string         // without a byte order mark
	lines  []int          // the offset of each line's start
	pos    map[string]int // key path → offset
	level  Level          // of a fault: Error, but Warn in a sidecar
	tables string         // the word for a table in this syntax, if not TOML
	loose  bool           // numbers and booleans may be in lists and tables of strings

	program func(command, cwd string) string // Options.Program

	diags  []Diagnostic
	faults int // faults found, at whatever level
	more   int // findings after maxDiagnostics
}

// open checks size and encoding, which all syntaxes share. A fault in them is the only one reported for a file.
func open(path string, data []byte, level Level) (*file, bool) {
	f := &file{path: path, level: level, pos: map[string]int{}}
	if len(data) > MaxFile {
		f.fault("", "the file has %d bytes; at most %d (1 MiB) are read", len(data), MaxFile)
		return f, false
	}
	f.text = string(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	f.lines = append(f.lines, 0)
	for i := range len(f.text) {
		if f.text[i] == '\n' {
			f.lines = append(f.lines, i+1)
		}
	}
	if !utf8.ValidString(f.text) {
		bad := 0
		for i, r := range f.text {
			if _, n := utf8.DecodeRuneInString(f.text[i:]); r == utf8.RuneError && n == 1 {
				bad = i
				break
			}
		}
		f.faultAt(bad, "the file is not UTF-8; save it as UTF-8")
		return f, false
	}
	return f, true
}

// The limits of a tree. Without them a small file could use gigabytes (a long table name, repeated in the path of
// each of its keys), minutes (a dotted key of ten thousand parts: the TOML decoder's time grows with the third power)
// or the whole stack (deeply nested arrays).
var (
	errDeep = fmt.Errorf("nested more than %d levels deep", maxNesting)
	errLong = fmt.Errorf("the key is longer than %d bytes, including the tables around it", maxPath)
	errMany = fmt.Errorf("more than %d keys and elements", maxKeys)
)

// setPos records the offset of the key path.
func (f *file) setPos(path string, off int) error {
	switch {
	case len(path) > maxPath:
		return errLong
	case len(f.pos) >= maxKeys:
		return errMany
	}
	f.pos[path] = off
	return nil
}

// lineCol converts an offset to a 1-based line and column.
func (f *file) lineCol(off int) (line, col int) {
	i, found := slices.BinarySearch(f.lines, off)
	if !found {
		i--
	}
	return i + 1, off - f.lines[i] + 1
}

// fault reports a wrong value at key; warn and info report a questionable one.
func (f *file) fault(key, format string, args ...any) {
	f.faults++
	f.add(f.level, key, format, args...)
}

func (f *file) warn(key, format string, args ...any) { f.add(Warn, key, format, args...) }
func (f *file) info(key, format string, args ...any) { f.add(Info, key, format, args...) }

// faultAt reports a syntax error, which has a position but no key.
func (f *file) faultAt(off int, format string, args ...any) {
	f.faults++
	line, col := f.lineCol(min(max(off, 0), len(f.text)))
	f.put(Diagnostic{Level: f.level, Line: line, Column: col, Message: fmt.Sprintf(format, args...)})
}

func (f *file) add(level Level, key, format string, args ...any) {
	d := Diagnostic{Level: level, Key: clip(key, 4*maxShown), Message: fmt.Sprintf(format, args...)}
	if off, ok := f.find(key); ok {
		d.Line, d.Column = f.lineCol(off)
	}
	f.put(d)
}

func (f *file) put(d Diagnostic) {
	if len(f.diags) >= maxDiagnostics {
		f.more++
		return
	}
	d.Path = f.path
	f.diags = append(f.diags, d)
}

// find returns the position of key or, if the key is missing, of the innermost table around it in the file.
func (f *file) find(key string) (int, bool) {
	for key != "" {
		if off, ok := f.pos[key]; ok {
			return off, true
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 0, false
}

// done returns the findings, sorted by position.
func (f *file) done() []Diagnostic {
	sortDiagnostics(f.diags)
	if f.more > 0 {
		f.diags = append(f.diags, Diagnostic{Level: f.level, Path: f.path,
			Message: fmt.Sprintf("and %d more faults", f.more)})
		f.more = 0
	}
	return f.diags
}

// join returns the path of key in the table at path, quoted if TOML requires it.
func join(path, key string) string {
	if !bare(key) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// element returns the path of an array's i-th element.
func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func bare(key string) bool {
	for i := range len(key) {
		if !bareByte(key[i]) {
			return false
		}
	}
	return key != ""
}

func bareByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// show quotes a user's value for a message.
func show(s string) string { return strconv.Quote(clip(s, maxShown)) }

// clip cuts s to n characters and marks the cut with an ellipsis.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i] + "…"
		}
		n--
	}
	return s
}
