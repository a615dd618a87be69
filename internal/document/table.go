package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/nearest"
)

// Table reads one table of a document. Its accessors report values of a wrong type, and Unknown reports the keys that
// no accessor has read. A null, which JSON and YAML allow, counts as absent.
type Table struct {
	*Doc
	Path string

	m       map[string]any
	known   []string
	present bool // the document has this table
	broken  bool // the document has this key, but not as a table: missing keys are not reported
}

// Key returns the path of one of the table's keys.
func (t *Table) Key(key string) string { return Join(t.Path, key) }

// Names returns the table's keys, sorted.
func (t *Table) Names() []string { return slices.Sorted(maps.Keys(t.m)) }

// Present reports whether the document has this table.
func (t *Table) Present() bool { return t.present }

// Broken reports whether the document has something else in place of this table, which was reported.
func (t *Table) Broken() bool { return t.broken }

// SetBroken prevents reports of missing keys.
func (t *Table) SetBroken() { t.broken = true }

// Raw returns the value of key without marking the key as known; nil if it is absent. Whole numbers are int64,
// fractions float64, numbers in JSON json.Number.
func (t *Table) Raw(key string) any { return t.m[key] }

// Has reports whether key is set, to any value.
func (t *Table) Has(key string) bool { return t.m[key] != nil }

// Drop removes keys, as if the document did not have them.
func (t *Table) Drop(keys ...string) {
	for _, key := range keys {
		delete(t.m, key)
	}
}

// Get returns the value of key.
func (t *Table) Get(key string) (any, bool) {
	t.known = append(t.known, key)
	v := t.m[key]
	return v, v != nil
}

// Missing reports the required key if it is absent.
func (t *Table) Missing(key, want string) {
	if !t.broken && !t.Has(key) {
		t.Fault(t.Key(key), "missing; want %s", want)
	}
}

// WrongType reports that the value v at a key path has a wrong type.
func (t *Table) WrongType(path string, v any, want string) {
	t.Fault(path, "is %s; want %s", t.kindOf(v), want)
}

// Str returns the string at key; ok is false if it is absent, or of another type, which is reported.
func (t *Table) Str(key string) (s string, ok bool) {
	v, present := t.Get(key)
	if !present {
		return "", false
	}
	if s, ok = v.(string); !ok {
		t.WrongType(t.Key(key), v, t.words.wantString)
	}
	return s, ok
}

// Bool returns the boolean at key.
func (t *Table) Bool(key string) (b, ok bool) {
	v, present := t.Get(key)
	if b, ok = v.(bool); present && !ok {
		t.WrongType(t.Key(key), v, "true or false")
	}
	return b, ok
}

// Int returns the whole number at key, in the range lo to hi; ok is false if it is absent or invalid.
func (t *Table) Int(key string, lo, hi int64) (n int64, ok bool) {
	v, present := t.Get(key)
	if !present {
		return 0, false
	}
	if n, ok = v.(int64); !ok {
		t.WrongType(t.Key(key), v, "a whole number")
	} else if n < lo || n > hi {
		t.Fault(t.Key(key), "%d is out of range; want %d to %d", n, lo, hi)
		ok = false
	}
	return n, ok
}

// Strs returns the array of strings at key. An element of another type is reported and read as "", so that indexes
// match the file; skip returns true for it. ok is false if there is no array.
func (t *Table) Strs(key string) (list []string, skip func(i int) bool, ok bool) {
	v, present := t.Get(key)
	array, ok := v.([]any)
	if present && !ok {
		t.WrongType(t.Key(key), v, t.words.wantList)
	}
	bad := map[int]bool{}
	for i, e := range array {
		s, ok := t.loosely(e).(string)
		if !ok {
			t.WrongType(Element(t.Key(key), i), e, t.words.wantString)
			bad[i] = true
		}
		list = append(list, s)
	}
	return list, func(i int) bool { return bad[i] }, ok
}

// StrMap returns the table of strings at key; values of another type are reported and omitted.
func (t *Table) StrMap(key string) map[string]string {
	sub := t.Sub(key)
	if len(sub.m) == 0 {
		return nil
	}
	out := make(map[string]string, len(sub.m))
	for _, k := range sub.Names() {
		sub.m[k] = t.loosely(sub.m[k])
		if s, ok := sub.Str(k); ok {
			out[k] = s
		}
	}
	return out
}

// loosely returns the text of a number or a boolean if the document may have them in the place of strings.
func (t *Table) loosely(v any) any {
	switch v.(type) {
	case json.Number, bool:
		if t.Loose {
			return fmt.Sprint(v)
		}
	}
	return v
}

// Sub returns the table at key; an absent one reads as empty.
func (t *Table) Sub(key string) *Table {
	v, present := t.Get(key)
	m, ok := v.(map[string]any)
	if present && !ok {
		t.WrongType(t.Key(key), v, strings.ReplaceAll(t.words.wantTable, "KEY", t.Key(key)))
	}
	return &Table{Doc: t.Doc, Path: t.Key(key), m: m, present: present, broken: present && !ok || t.broken}
}

// Unknown reports the keys that no accessor has read, with the nearest known key or Options.Hint. With Error they are
// faults; with another level the file has other readers too.
func (t *Table) Unknown(level Level) {
	slices.Sort(t.known)
	t.known = slices.Compact(t.known)
	for _, k := range t.Names() {
		if _, ok := slices.BinarySearch(t.known, k); ok {
			continue
		}
		hint := "known keys: " + strings.Join(t.known, ", ")
		if near, ok := nearest.Word(k, t.known); ok {
			hint = fmt.Sprintf("did you mean %s?", near)
		} else if level == Error && t.Hint != nil {
			if h := t.Hint(t.Path, k); h != "" {
				hint = h
			}
		}
		if level == Error {
			t.Faults++
		}
		t.add(level, t.Key(k), false, "unknown key; %s", hint)
	}
}

// unsupported is a value that the syntax allows and no document needs; the text describes it.
type unsupported string

// kindOf returns the syntax's name for a value's type.
func (d *Doc) kindOf(v any) string {
	switch v := v.(type) {
	case string:
		return "a string"
	case int64:
		return d.words.integer
	case float64:
		return d.words.float
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case []any:
		return d.words.list
	case []map[string]any:
		return "an array of tables"
	case map[string]any:
		return d.words.table
	case unsupported:
		return string(v)
	case nil:
		return "null"
	}
	return "of an unsupported type"
}
