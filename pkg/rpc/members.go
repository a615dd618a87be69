package rpc

import (
	"bytes"
	"encoding/json"
)

// Span is where a value stands in the text it was found in: text[From:To].
type Span struct{ From, To int }

// In returns the value.
func (s Span) In(text []byte) []byte { return text[s.From:s.To] }

// Member finds the member of a JSON object by its name, as a parser would: escapes in keys are undone, case
// counts, and of several the last is it. The text is one that Scan has passed; of any other it promises
// nothing but an end.
func Member(object []byte, name string) (at Span, ok bool) {
	eachMember(object, func(key, value Span) {
		if isKey(key.In(object), name) {
			at, ok = value, true
		}
	})
	return at, ok
}

// eachMember calls f for the members of object until it meets what is none; key has its quotes.
func eachMember(object []byte, f func(key, value Span)) {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return
	}
	i = space(object, i+1)
	for i < len(object) && object[i] == '"' {
		key := Span{From: i}
		var err error
		if key.To, err = skipString(object, i); err != nil {
			return
		}
		if i = space(object, key.To); i >= len(object) || object[i] != ':' {
			return
		}
		value := Span{From: space(object, i+1)}
		if value.To, err = skipValue(object, value.From); err != nil {
			return
		}
		f(key, value)
		if i = space(object, value.To); i >= len(object) || object[i] != ',' {
			return
		}
		i = space(object, i+1)
	}
}

// isKey compares a key as it stands in a text, quotes and all, with a name.
func isKey(key []byte, name string) bool {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key[1:len(key)-1]) == name
	}
	var s string
	return json.Unmarshal(key, &s) == nil && s == name
}

// Splice returns text with the span at replaced, in memory of its own.
func Splice(text []byte, at Span, by []byte) []byte {
	out := make([]byte, 0, len(text)+len(by)-(at.To-at.From))
	out = append(out, text[:at.From]...)
	out = append(out, by...)
	return append(out, text[at.To:]...)
}

// SetMember returns object with the member set to value and standing last, so that no parser can take another
// for it: of keys that are the same, for some but for case, parsers believe the last. The other members stay
// byte for byte, in their order. An empty object counts as {}; ok is false for what is no object.
func SetMember(object []byte, name string, value []byte) (out []byte, ok bool) {
	open := space(object, 0)
	if open == len(object) {
		object, open = []byte("{}"), 0
	}
	if object[open] != '{' {
		return nil, false
	}
	member := append(appendString(nil, name), ':')
	member = append(member, value...)
	var n, found int
	var end Span // of the last member, whichever it is
	eachMember(object, func(key, v Span) {
		n++
		if end = v; isKey(key.In(object), name) {
			found++
		}
	})
	switch {
	case n == 0:
		return Splice(object, Span{open + 1, open + 1}, member), true
	case found == 0:
		return Splice(object, Span{end.To, end.To}, append([]byte{','}, member...)), true
	}
	// It is there: take it out, wherever and however often it stands.
	out = append(make([]byte, 0, len(object)+len(member)), object[:open+1]...)
	eachMember(object, func(key, v Span) {
		if !isKey(key.In(object), name) {
			out = append(append(out, object[key.From:v.To]...), ',')
		}
	})
	return append(append(out, member...), object[end.To:]...), true
}
