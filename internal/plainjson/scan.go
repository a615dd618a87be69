package plainjson

import (
	"bytes"
	"errors"
)

var errStructure = errors.New("not a complete JSON value of the expected type")

// EachMember calls f for each member of an object, without copying: key is the text of a JSON string, value that of any JSON
// value. It checks only the structure that it needs, so in text that may be invalid JSON a value may be invalid as well.
func EachMember(object []byte, f func(key, value []byte) error) error {
	return each(object, '{', '}', func(i int) (int, error) {
		end := endOfValue(object, i)
		colon := skipBlank(object, end)
		if object[i] != '"' || colon >= len(object) || object[colon] != ':' {
			return 0, errStructure
		}
		key := object[i:end:end]
		i = skipBlank(object, colon+1)
		if end = endOfValue(object, i); end > len(object) || end == i {
			return 0, errStructure
		}
		return end, f(key, object[i:end:end])
	})
}

// EachElement calls f for each element of an array, under the conditions of EachMember.
func EachElement(array []byte, f func(element []byte) error) error {
	return each(array, '[', ']', func(i int) (int, error) {
		end := endOfValue(array, i)
		if end > len(array) || end == i {
			return 0, errStructure
		}
		return end, f(array[i:end:end])
	})
}

// each calls item with the offset of each item between the brackets; item returns the offset of the item's end.
func each(b []byte, first, last byte, item func(i int) (end int, err error)) error {
	i := skipBlank(b, 0)
	if i >= len(b) || b[i] != first {
		return errStructure
	}
	i = skipBlank(b, i+1)
	if i < len(b) && b[i] == last {
		return nil
	}
	for i < len(b) {
		end, err := item(i)
		if err != nil {
			return err
		}
		switch i = skipBlank(b, end); {
		case i >= len(b):
		case b[i] == last:
			return nil
		case b[i] == ',':
			i = skipBlank(b, i+1)
		default:
			return errStructure
		}
	}
	return errStructure
}

func skipBlank(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// endOfValue is the offset after the value that begins at i, over len(b) if the value is not complete.
func endOfValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = endOfString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
			i++
		default:
			if depth > 0 {
				i++
				continue
			}
			for i < len(b) && !bytes.ContainsRune([]byte(" \n\t\r,]}:"), rune(b[i])) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return len(b) + 1
}

// endOfString is the offset after the string that begins at i, over len(b) if the string is not complete.
func endOfString(b []byte, i int) int {
	for start := i + 1; ; {
		n := bytes.IndexByte(b[start:], '"')
		if n < 0 {
			return len(b) + 1
		}
		quote := start + n
		slashes := 0
		for b[quote-1-slashes] == '\\' { // ends at the opening quote
			slashes++
		}
		if slashes%2 == 0 {
			return quote + 1
		}
		start = quote + 1
	}
}
