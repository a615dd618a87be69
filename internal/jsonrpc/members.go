package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// Span is the position of a value in a text: text[From:To].
type Span struct{ From, To int }

// In returns the value.
func (s Span) In(text []byte) []byte { return text[s.From:s.To] }

// Member finds a member of a JSON object by its name, as a parser would: escapes in keys are decoded, case matters, and
// the last of several members with the name counts. The text must have passed Scan; for any other text the result is
// undefined, but Member returns.
func Member(object []byte, name string) (at Span, ok bool) {
	_ = walk(object, func(key, value Span) bool {
		if string(nameOf(key.In(object))) == name {
			at, ok = value, true
		}
		return true
	})
	return at, ok
}

// nameOf returns a key as a parser does: without quotes, and with escapes decoded.
func nameOf(key []byte) []byte {
	if bytes.IndexByte(key, '\\') < 0 {
		return key[1 : len(key)-1]
	}
	var s string
	if json.Unmarshal(key, &s) != nil { // cannot fail: Scan has checked it
		return nil
	}
	return []byte(s)
}

// Splice returns a copy of text with the span at replaced.
func Splice(text []byte, at Span, by []byte) []byte {
	out := make([]byte, 0, len(text)+len(by)-(at.To-at.From))
	out = append(out, text[:at.From]...)
	out = append(out, by...)
	return append(out, text[at.To:]...)
}

// SetMember returns object with the member set to value, in place if it exists and otherwise as the last member. If the
// key occurs several times, or with different case, which Go's encoding/json ignores, all members with the exact name
// are removed and the new one is appended, since parsers use the last. All other bytes stay the same. An empty text
// counts as {}; ok is false if object is not a JSON object.
func SetMember(object []byte, name string, value []byte) (out []byte, ok bool) {
	open := space(object, 0)
	if open == len(object) {
		object, open = []byte("{}"), 0
	}
	if object[open] != '{' {
		return nil, false
	}
	var n, same, alike int
	var at, last Span
	_ = walk(object, func(key, v Span) bool {
		n++
		last = v
		switch k := nameOf(key.In(object)); {
		case string(k) == name:
			same++
			at = v
		case bytes.EqualFold(k, []byte(name)):
			alike++
		}
		return true
	})
	if same == 1 && alike == 0 {
		return Splice(object, at, value), true
	}
	member := append(plainjson.AppendString(nil, name), ':')
	member = append(member, value...)
	switch {
	case n == 0:
		return Splice(object, Span{open + 1, open + 1}, member), true
	case same == 0:
		return Splice(object, Span{last.To, last.To}, append([]byte{','}, member...)), true
	}
	out = append(make([]byte, 0, len(object)+len(member)), object[:open+1]...)
	_ = walk(object, func(key, v Span) bool {
		if string(nameOf(key.In(object))) != name {
			out = append(append(out, object[key.From:v.To]...), ',')
		}
		return true
	})
	return append(append(out, member...), object[last.To:]...), true
}
