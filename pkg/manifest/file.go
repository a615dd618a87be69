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
	// MaxFile is the size in bytes above which a manifest, a sidecar or a skill is refused.
	MaxFile = 1 << 20

	maxNesting     = 16      // tables and arrays inside one another, and parts of one dotted key
	maxPath        = 256     // bytes of a key with all the tables around it
	maxKeys        = 1 << 15 // in a file, elements of arrays included
	maxElements    = 1 << 12 // of an array with a position of their own; later ones point at the array
	maxDiagnostics = 500     // per file; the rest is counted
	maxShown       = 64      // characters of a user's value in a message
)

// file is one text under examination: where its keys stand, and what was found in it so far. The rules do not
// know which syntax the text has: TOML, JSON and YAML all become a tree of map[string]any, []any and scalars,
// and a position for each key path.
type file struct {
	path   string
	text   string         // without a byte order mark
	lines  []int          // the offset of each line's start
	pos    map[string]int // key path → offset
	level  Level          // of a fault: Error, but Warn in a sidecar
	tables string         // what the syntax calls a table, if not TOML

	program func(command, cwd string) string // Options.Program

	diags  []Diagnostic
	faults int // faults found, at whatever level
	more   int // findings beyond maxDiagnostics
}

// open checks what all syntaxes share, size and encoding. Its fault is the only one of such a file.
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

// The limits of a tree. Without them a small file could ask for gigabytes (a long table name, repeated in the
// path of each of its keys), minutes (a dotted key of ten thousand parts: the TOML decoder's time grows with
// the cube) or the whole stack (arrays in arrays in arrays).
var (
	errDeep = fmt.Errorf("nested more than %d levels deep; nothing that is read here is", maxNesting)
	errLong = fmt.Errorf("the key is longer than %d bytes, with the tables around it; none that is read here is", maxPath)
	errMany = fmt.Errorf("more than %d keys and elements", maxKeys)
)

// place records that path stands at off.
func (f *file) place(path string, off int) error {
	switch {
	case len(path) > maxPath:
		return errLong
	case len(f.pos) >= maxKeys:
		return errMany
	}
	f.pos[path] = off
	return nil
}

// lineCol turns an offset into a 1-based line and column.
func (f *file) lineCol(off int) (line, col int) {
	i, found := slices.BinarySearch(f.lines, off)
	if !found {
		i--
	}
	return i + 1, off - f.lines[i] + 1
}

// fault reports that the value at key is wrong; warn and info that it is merely odd.
func (f *file) fault(key, format string, args ...any) {
	f.faults++
	f.add(f.level, key, format, args...)
}

func (f *file) warn(key, format string, args ...any) { f.add(Warn, key, format, args...) }
func (f *file) info(key, format string, args ...any) { f.add(Info, key, format, args...) }

// faultAt reports a fault of the syntax, which has a place but no key.
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

// find is the position of key, or, for one that is missing, of the innermost table around it that stands in
// the file.
func (f *file) find(key string) (int, bool) {
	for key != "" {
		if off, ok := f.pos[key]; ok {
			return off, true
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 0, false
}

// done returns the findings in the file's order.
func (f *file) done() []Diagnostic {
	sortDiagnostics(f.diags)
	if f.more > 0 {
		f.diags = append(f.diags, Diagnostic{Level: f.level, Path: f.path,
			Message: fmt.Sprintf("and %d more faults", f.more)})
		f.more = 0
	}
	return f.diags
}

// join is the path of key in the table at path, quoted as TOML would where it must be.
func join(path, key string) string {
	if !bare(key) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// element is the path of an array's i-th element.
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

// clip cuts s to n characters and says so with an ellipsis.
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
