// Package plainyaml writes JSON as YAML, in the form that people write by hand.
package plainyaml

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// FromJSON is a JSON object in YAML.
func FromJSON(text []byte) ([]byte, error) {
	w := writer{in: json.NewDecoder(bytes.NewReader(text))}
	w.in.UseNumber()
	err := w.value(0, rootValue)
	return w.out.Bytes(), err
}

// writer writes the values of a JSON text as YAML, in their order. A number keeps its digits. A string is in double
// quotes, with the escapes of Go, which YAML has, too: nothing in it can control a terminal.
type writer struct {
	in  *json.Decoder
	out bytes.Buffer
}

// place is the context of a value: it decides whether the first line of the value continues the line.
type place int

const (
	rootValue place = iota
	memberValue
	itemValue
)

func (w *writer) value(depth int, at place) error {
	token, err := w.in.Token()
	if err != nil {
		return err
	}
	open, nested := token.(json.Delim)
	if !nested {
		w.out.WriteString(" " + scalar(token) + "\n")
		return nil
	}
	if !w.in.More() {
		w.out.WriteString(map[json.Delim]string{'{': " {}\n", '[': " []\n"}[open])
		_, err = w.in.Token() // the end
		return err
	}
	if at == memberValue {
		w.out.WriteByte('\n')
	}
	for first := true; w.in.More(); first = false {
		if at == itemValue && first {
			w.out.WriteByte(' ')
		} else {
			w.out.WriteString(strings.Repeat("  ", depth))
		}
		if open == '[' {
			w.out.WriteByte('-')
			err = w.value(depth+1, itemValue)
		} else {
			err = w.member(depth + 1)
		}
		if err != nil {
			return err
		}
	}
	_, err = w.in.Token()
	return err
}

func (w *writer) member(depth int) error {
	key, err := w.in.Token()
	if err != nil {
		return err
	}
	w.out.WriteString(scalar(key) + ":")
	return w.value(depth, memberValue)
}

// unquoted matches strings that need no quotes, except the words that YAML reads as something else.
var (
	unquoted = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)
	reserved = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
)

func scalar(token json.Token) string {
	switch v := token.(type) {
	case string:
		if unquoted.MatchString(v) && !slices.Contains(reserved, strings.ToLower(v)) {
			return v
		}
		return strconv.Quote(v)
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	return "null"
}
