package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/nearest"
)

// table reads one table of a file's tree. Its accessors report values of a wrong type, and unknown reports the keys
// that no accessor has read.
type table struct {
	*file
	path    string
	m       map[string]any
	known   []string
	present bool // the file has this table
	broken  bool // the file has this key, but not as a table: missing keys are not reported
}

func (f *file) root(m map[string]any) *table { return &table{file: f, m: m, present: true} }

// key is the path of one of the table's keys.
func (t *table) key(key string) string { return join(t.path, key) }

// get returns the value of key. A null, which JSON and YAML allow, counts as absent.
func (t *table) get(key string) (any, bool) {
	t.known = append(t.known, key)
	v := t.m[key]
	return v, v != nil
}

// has reports whether key is set, to any value.
func (t *table) has(key string) bool { return t.m[key] != nil }

// missing reports the required key if it is absent.
func (t *table) missing(key, want string) {
	if !t.broken && !t.has(key) {
		t.fault(t.key(key), "missing; want %s", want)
	}
}

func (t *table) wrongType(path string, v any, want string) {
	t.fault(path, "is %s; want %s", kindOf(v), want)
}

// str returns the string at key; ok is false if it is absent, or of another type, which is reported.
func (t *table) str(key string) (s string, ok bool) {
	v, present := t.get(key)
	if !present {
		return "", false
	}
	if s, ok = v.(string); !ok {
		t.wrongType(t.key(key), v, "a string in quotes")
	}
	return s, ok
}

// text returns a string of at most limit characters, for people to read.
func (t *table) text(key string, limit int) string {
	s, _ := t.str(key)
	if n := utf8.RuneCountInString(s); n > limit {
		t.fault(t.key(key), "has %d characters; want at most %d", n, limit)
	}
	return s
}

func (t *table) boolean(key string) bool {
	v, present := t.get(key)
	b, ok := v.(bool)
	if present && !ok {
		t.wrongType(t.key(key), v, "true or false")
	}
	return b
}

// integer returns the whole number at key, in the range lo to hi; ok is false if it is absent or invalid.
func (t *table) integer(key string, lo, hi int64) (n int64, ok bool) {
	v, present := t.get(key)
	if !present {
		return 0, false
	}
	if n, ok = v.(int64); !ok {
		t.wrongType(t.key(key), v, "a whole number")
	} else if n < lo || n > hi {
		t.fault(t.key(key), "%d is out of range; want %d to %d", n, lo, hi)
		ok = false
	}
	return n, ok
}

// strs returns the array of strings at key. An element of another type is reported and read as "", so that indexes
// match the file; skip returns true for it.
func (t *table) strs(key string) (list []string, skip func(i int) bool) {
	v, present := t.get(key)
	array, ok := v.([]any)
	if present && !ok {
		t.wrongType(t.key(key), v, `an array of strings, such as ["a", "b"]`)
	}
	bad := map[int]bool{}
	for i, e := range array {
		s, ok := t.loosely(e).(string)
		if !ok {
			t.wrongType(element(t.key(key), i), e, "a string in quotes")
			bad[i] = true
		}
		list = append(list, s)
	}
	return list, func(i int) bool { return bad[i] }
}

// strMap returns the table of strings at key; values of another type are reported and omitted.
func (t *table) strMap(key string) map[string]string {
	sub := t.table(key)
	if len(sub.m) == 0 {
		return nil
	}
	out := make(map[string]string, len(sub.m))
	for _, k := range slices.Sorted(maps.Keys(sub.m)) {
		sub.m[k] = t.loosely(sub.m[k])
		if s, ok := sub.str(k); ok {
			out[k] = s
		}
	}
	return out
}

// loosely returns the text of a number or a boolean if the file may have them in the place of strings.
func (t *table) loosely(v any) any {
	switch v.(type) {
	case json.Number, bool:
		if t.loose {
			return fmt.Sprint(v)
		}
	}
	return v
}

// table returns the table at key; an absent one reads as empty.
func (t *table) table(key string) *table {
	v, present := t.get(key)
	m, ok := v.(map[string]any)
	if present && !ok {
		want := t.tables
		if want == "" {
			want = "a table, such as [" + t.key(key) + "]"
		}
		t.wrongType(t.key(key), v, want)
	}
	return &table{file: t.file, path: t.key(key), m: m, present: present, broken: present && !ok || t.broken}
}

// unknown reports the keys that no accessor has read, with the nearest known key or the table of a manifest that has
// such a key. In a manifest they are errors; with level Warn the file has other readers too.
func (t *table) unknown(level Level) {
	slices.Sort(t.known)
	for _, k := range slices.Sorted(maps.Keys(t.m)) {
		if _, ok := slices.BinarySearch(t.known, k); ok {
			continue
		}
		hint := "known keys: " + strings.Join(slices.Compact(t.known), ", ")
		if near, ok := nearest.Word(k, t.known); ok {
			hint = fmt.Sprintf("did you mean %s?", near)
		} else if level == Error && tableOf(k) != "" {
			hint = "it belongs in " + tableOf(k)
		}
		if level == Error {
			t.faults++
		}
		t.add(level, t.key(k), "unknown key; %s", hint)
	}
}

// kindOf returns TOML's name for a value's type.
func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case []any:
		return "an array"
	case []map[string]any:
		return "an array of tables"
	case map[string]any:
		return "a table"
	case nil:
		return "null"
	}
	return "of an unsupported type"
}
