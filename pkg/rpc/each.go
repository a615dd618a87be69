package rpc

import "errors"

var errNoObject = errors.New("not a JSON object")

// Each calls f for every member of a JSON object, in order, with the key as it is written between its quotes
// (escapes and all) and the raw value, until f returns false. It checks the grammar of what it passes; the
// error says what is wrong, and where. Nothing is decoded and nothing allocated.
func Each(object []byte, f func(key, value []byte) bool) error {
	return walk(object, func(key, value Span) bool {
		return f(object[key.From+1:key.To-1], object[value.From:value.To:value.To])
	})
}

// walk is Each by offsets; keys have their quotes.
func walk(object []byte, f func(key, value Span) bool) error {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return errNoObject
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
