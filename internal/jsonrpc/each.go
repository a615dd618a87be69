package jsonrpc

// Each calls f for every member of a JSON object, in order, until f returns false. f receives the raw key, without
// quotes but with escapes, and the raw value. Each checks the grammar of the text that it reads; the error has the
// position. It decodes and allocates nothing.
func Each(object []byte, f func(key, value []byte) bool) error {
	return walk(object, func(key, value Span) bool {
		return f(object[key.From+1:key.To-1], object[value.From:value.To:value.To])
	})
}

// walk is Each with offsets; keys include their quotes.
func walk(object []byte, f func(key, value Span) bool) error {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return syntax(object, i, "a JSON object")
	}
	i = space(object, i+1)
	if i < len(object) && object[i] == '}' {
		return end(object, i+1)
	}
	for {
		key := Span{From: i}
		var err error
		if key.To, err = skipString(object, i); err != nil {
			return err
		}
		if i = space(object, key.To); i >= len(object) || object[i] != ':' {
			return syntax(object, i, `":"`)
		}
		value := Span{From: space(object, i+1)}
		if value.To, err = skipValue(object, value.From); err != nil {
			return err
		}
		if !f(key, value) {
			return nil
		}
		i = space(object, value.To)
		switch {
		case i < len(object) && object[i] == ',':
			i = space(object, i+1)
		case i < len(object) && object[i] == '}':
			return end(object, i+1)
		default:
			return syntax(object, i, `"," or "}"`)
		}
	}
}

// Valid reports whether text is one JSON value.
func Valid(text []byte) bool {
	i, err := skipValue(text, space(text, 0))
	return err == nil && end(text, i) == nil
}

// TypeOf returns the JSON Schema type of a valid JSON value without spaces before it; number for integers, too.
func TypeOf(value []byte) string {
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// Elements calls f for every element of a JSON array, as Each does for the members of an object.
func Elements(array []byte, f func(element []byte) bool) error {
	i := space(array, 0)
	if i >= len(array) || array[i] != '[' {
		return syntax(array, i, "a JSON array")
	}
	i = space(array, i+1)
	if i < len(array) && array[i] == ']' {
		return end(array, i+1)
	}
	for {
		to, err := skipValue(array, i)
		if err != nil {
			return err
		}
		if !f(array[i:to:to]) {
			return nil
		}
		i = space(array, to)
		switch {
		case i < len(array) && array[i] == ',':
			i = space(array, i+1)
		case i < len(array) && array[i] == ']':
			return end(array, i+1)
		default:
			return syntax(array, i, `"," or "]"`)
		}
	}
}
