package rpc

import "errors"

var errNoObject = errors.New("not a JSON object")

// Each calls f for every member of a JSON object, in order, with the key as it is written between its quotes
// (escapes and all) and the raw value, until f returns false. It checks the grammar of what it passes; the
// error says what is wrong, and where. Nothing is decoded and nothing allocated.
func Each(object []byte, f func(key, value []byte) bool) error {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return errNoObject
	}
	i = space(object, i+1)
	if i < len(object) && object[i] == '}' {
		return end(object, i+1)
	}
	for {
		at := i
		var err error
		if i, err = skipString(object, i); err != nil {
			return err
		}
		key := object[at+1 : i-1]
		if i = space(object, i); i >= len(object) || object[i] != ':' {
			return syntax(object, i, `":"`)
		}
		at = space(object, i+1)
		if i, err = skipValue(object, at); err != nil {
			return err
		}
		if !f(key, object[at:i:i]) {
			return nil
		}
		i = space(object, i)
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
