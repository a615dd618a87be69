package rpc

// Span is where a value stands in the text it was found in: text[From:To].
type Span struct{ From, To int }

// In returns the value.
func (s Span) In(text []byte) []byte { return text[s.From:s.To] }

// Member finds the member of a JSON object by its name, letter for letter; of several the last. The text is
// one that Scan has passed; of any other it promises nothing but an end.
func Member(object []byte, name string) (at Span, ok bool) {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return Span{}, false
	}
	i = space(object, i+1)
	for i < len(object) && object[i] == '"' {
		keyAt := i
		end, err := skipString(object, i)
		if err != nil {
			return Span{}, false
		}
		key := object[keyAt+1 : end-1]
		if i = space(object, end); i >= len(object) || object[i] != ':' {
			return Span{}, false
		}
		from := space(object, i+1)
		if i, err = skipValue(object, from); err != nil {
			return Span{}, false
		}
		if string(key) == name {
			at, ok = Span{from, i}, true
		}
		if i = space(object, i); i >= len(object) || object[i] != ',' {
			break
		}
		i = space(object, i+1)
	}
	return at, ok
}

// Splice returns text with the span at replaced, in memory of its own.
func Splice(text []byte, at Span, by []byte) []byte {
	out := make([]byte, 0, len(text)+len(by)-(at.To-at.From))
	out = append(out, text[:at.From]...)
	out = append(out, by...)
	return append(out, text[at.To:]...)
}

// SetMember returns object with the member set to value: in place where it stands already, else in front. The
// rest stays byte for byte. An empty object counts as {}; ok is false for what is no object.
func SetMember(object []byte, name string, value []byte) (out []byte, ok bool) {
	i := space(object, 0)
	if i == len(object) {
		object, i = []byte("{}"), 0
	}
	if object[i] != '{' {
		return nil, false
	}
	if at, ok := Member(object, name); ok {
		return Splice(object, at, value), true
	}
	member := appendString(nil, name)
	member = append(member, ':')
	member = append(member, value...)
	if next := space(object, i+1); next < len(object) && object[next] != '}' {
		member = append(member, ',')
	}
	return Splice(object, Span{i + 1, i + 1}, member), true
}
