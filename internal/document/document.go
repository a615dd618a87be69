// Package document reads TOML, YAML and JSON files that people write, and reports every fault in them with its line,
// column and key, like a compiler. A decoder of the Go library stops at the first fault, and reports a value of a wrong
// type without its position.
//
//	d, ok := document.Open("weather/plugin.toml", data, document.Options{})
//	root, ok := d.TOML()            // or d.JSON(), d.YAML(text)
//	plugin := root.Sub("plugin")
//	id, ok := plugin.Str("id")      // reports a value that is not a string
//	plugin.Unknown(document.Error)  // reports the keys that no accessor has read
//	findings := d.Findings()        // sorted by position
//
// All syntaxes become the same tree, a map[string]any with the positions of all keys and values, so that the rules of a
// file do not depend on its syntax. The size, the depth and the number of keys are limited before the tree is built.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxFile is the maximum size of a file in bytes.
const MaxFile = 1 << 20

// Limits of a tree. Without them a small file could use gigabytes (a long table name, repeated in the path of each of
// its keys), minutes (a dotted key of ten thousand parts: the TOML decoder's time grows with the third power) or the
// whole stack (deeply nested arrays).
const (
	maxNesting  = 16      // nested tables and arrays, and parts of one dotted key
	maxPath     = 256     // bytes of a key including all the tables around it
	maxKeys     = 1 << 15 // in a file, including elements of arrays
	maxElements = 1 << 12 // elements of an array with their own position; later ones have the array's

	// MaxFindings is the number of findings per file; further ones are only counted.
	MaxFindings = 500
	maxShown    = 64 // characters of a user's value in a message
)

// The errors of files that exceed a limit.
var (
	ErrDeep = fmt.Errorf("nested more than %d levels deep", maxNesting)
	ErrLong = fmt.Errorf("the key is longer than %d bytes, including the tables around it", maxPath)
	ErrMany = fmt.Errorf("more than %d keys and elements", maxKeys)
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	Error Level = "error"
	Warn  Level = "warn"
	Info  Level = "info"
)

// Finding is one finding about one position in a file: what is wrong and what would be right. Messages never contain the value of
// a variable, a header or a URL, because those may be secrets.
type Finding struct {
	Level   Level  `json:"level"`
	Path    string `json:"path"`
	Line    int    `json:"line,omitempty"`   // 1-based; 0 = the file as a whole
	Column  int    `json:"column,omitempty"` // 1-based, in bytes
	Key     string `json:"key,omitempty"`    // dotted, e.g. plugin.id or capabilities.tools[2]
	Message string `json:"message"`
}

// String returns path:line:column: level: key: message, without the absent parts; editors and terminals can jump to it.
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(f.Path)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	fmt.Fprintf(&b, ": %s: ", f.Level)
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

// Options configure a Doc.
type Options struct {
	Level    Level                         // of a fault; empty: Error
	Subject  string                        // what the text is, if not the whole file, such as "the front matter"
	AtValues bool                          // a fault is at the position of the value instead of its key
	Loose    bool                          // numbers and booleans may be in lists and tables of strings
	Hint     func(path, key string) string // a hint about an unknown key of the table at path, or ""
}

// Doc is a text being read: the positions of its keys and values, and the findings so far.
type Doc struct {
	Options
	// Faults is the number of faults found so far, at whatever level.
	Faults int

	path     string
	text     string         // without a byte order mark
	lines    []int          // the offset of each line's start
	keys     map[string]int // key path → offset of the key
	values   map[string]int // key path → offset of the value
	words    words
	last     place // the last result of offset
	findings []Finding
	more     int // findings after MaxFindings

	statements []statement // of a TOML text, in order
}

// words are the names of types in a syntax.
type words struct{ integer, float, list, table, wantString, wantList, wantTable string }

// Open checks size and encoding, which all syntaxes share. If ok is false, the fault was reported, and is the only one.
func Open(path string, data []byte, opt Options) (d *Doc, ok bool) {
	opt.Level = cmp.Or(opt.Level, Error)
	d = &Doc{Options: opt, path: path, keys: map[string]int{}, values: map[string]int{}}
	if len(data) > MaxFile {
		d.Fault("", "the file has more than %d bytes (1 MiB)", MaxFile)
		return d, false
	}
	d.text = string(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	d.lines = append(d.lines, 0)
	for i := range len(d.text) {
		if d.text[i] == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
	if !utf8.ValidString(d.text) {
		bad := 0
		for i, r := range d.text {
			if _, n := utf8.DecodeRuneInString(d.text[i:]); r == utf8.RuneError && n == 1 {
				bad = i
				break
			}
		}
		d.FaultAt(bad, "the file is not UTF-8; save it as UTF-8")
		return d, false
	}
	return d, true
}

// Text returns the text without a byte order mark.
func (d *Doc) Text() string { return d.text }

// setPos records the offsets of the key path and of its value.
func (d *Doc) setPos(path string, key, value int) error {
	switch {
	case len(path) > maxPath:
		return ErrLong
	case len(d.keys) >= maxKeys:
		return ErrMany
	}
	d.keys[path], d.values[path] = key, value
	return nil
}

// KeyPos returns the 1-based line and column, in bytes, of a key path.
func (d *Doc) KeyPos(path string) (line, column int, ok bool) { return d.position(d.keys, path) }

// ValuePos returns the position of the value at a key path.
func (d *Doc) ValuePos(path string) (line, column int, ok bool) { return d.position(d.values, path) }

func (d *Doc) position(all map[string]int, path string) (line, column int, ok bool) {
	off, ok := all[path]
	if ok {
		line, column = d.lineCol(off)
	}
	return line, column, ok
}

// lineCol converts an offset to a 1-based line and column.
func (d *Doc) lineCol(off int) (line, col int) {
	i, found := slices.BinarySearch(d.lines, off)
	if !found {
		i--
	}
	return i + 1, off - d.lines[i] + 1
}

// Fault reports a wrong value at the key path; Warn and Info report a questionable one.
func (d *Doc) Fault(path, format string, args ...any) {
	d.Faults++
	d.add(d.Level, path, d.AtValues, format, args...)
}

// FaultKey reports a fault at the position of the key, also with AtValues.
func (d *Doc) FaultKey(path, format string, args ...any) {
	d.Faults++
	d.add(d.Level, path, false, format, args...)
}

// Warn reports a warning at the position of the key.
func (d *Doc) Warn(path, format string, args ...any) { d.add(Warn, path, false, format, args...) }

// Info reports a note at the position of the key.
func (d *Doc) Info(path, format string, args ...any) { d.add(Info, path, false, format, args...) }

// FaultAt reports a fault that has an offset but no key, such as a syntax error.
func (d *Doc) FaultAt(off int, format string, args ...any) {
	d.Faults++
	d.put(Finding{Level: d.Level, Message: fmt.Sprintf(format, args...)}, off)
}

func (d *Doc) add(level Level, path string, atValue bool, format string, args ...any) {
	off := d.find(path, atValue)
	d.put(Finding{Level: level, Key: Clip(path, 4*maxShown), Message: fmt.Sprintf(format, args...)}, off)
}

// put adds a finding at an offset; -1 is the file as a whole.
func (d *Doc) put(f Finding, off int) {
	if len(d.findings) >= MaxFindings {
		d.more++
		return
	}
	if off >= 0 {
		f.Line, f.Column = d.lineCol(min(off, len(d.text)))
	}
	f.Path = d.path
	d.findings = append(d.findings, f)
}

// find returns the position of a key path or, if it is missing, of the innermost table around it in the file.
func (d *Doc) find(path string, atValue bool) int {
	for path != "" {
		off, ok := d.keys[path]
		if atValue {
			off, ok = d.values[path]
		}
		if ok {
			return off
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return -1
}

// Findings returns what was found, sorted by position; findings about the whole file are first.
func (d *Doc) Findings() []Finding {
	slices.SortStableFunc(d.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if d.more > 0 {
		d.findings = append(d.findings, Finding{Level: d.Level, Path: d.path, Message: fmt.Sprintf("and %d more faults", d.more)})
		d.more = 0
	}
	return d.findings
}

// root returns the table of a decoded tree.
func (d *Doc) root(v any, at int) (*Table, bool) {
	m, ok := v.(map[string]any)
	if !ok && v != nil {
		d.FaultAt(at, "%s", strings.TrimSpace(d.Subject+" is "+d.kindOf(v)+"; want "+d.words.wantTable))
		return nil, false
	}
	return &Table{Doc: d, m: m, present: true}, true
}

// guard turns a panic of a decoder, which has bugs, into an error.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = errors.New("the decoder cannot read this file: " + Clip(fmt.Sprint(r), maxShown))
	}
}

// Join returns the path of key in the table at path, quoted if TOML requires it.
func Join(path, key string) string {
	if !bare(key) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Element returns the path of an array's i-th element.
func Element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

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

// Show quotes a user's value for a message, and shortens a long one.
func Show(s string) string { return strconv.Quote(Clip(s, maxShown)) }

// Clip cuts s to n characters and marks the cut with an ellipsis.
func Clip(s string, n int) string {
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
