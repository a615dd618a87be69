package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// yamlOf is a JSON object in YAML.
func yamlOf(text []byte) ([]byte, error) {
	w := yamlWriter{in: json.NewDecoder(bytes.NewReader(text))}
	w.in.UseNumber()
	err := w.value(0, rootValue)
	return w.out.Bytes(), err
}

// yamlWriter writes the values of a JSON text as YAML, in their order. A number keeps its digits. A string is in double
// quotes, with the escapes of Go, which YAML has, too: nothing in it can control a terminal.
type yamlWriter struct {
	in  *json.Decoder
	out bytes.Buffer
}

// yamlPlace is the context of a value: it decides whether the first line of the value continues the line.
type yamlPlace int

const (
	rootValue yamlPlace = iota
	memberValue
	itemValue
)

func (w *yamlWriter) value(depth int, at yamlPlace) error {
	token, err := w.in.Token()
	if err != nil {
		return err
	}
	open, nested := token.(json.Delim)
	if !nested {
		w.out.WriteString(" " + yamlScalar(token) + "\n")
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

func (w *yamlWriter) member(depth int) error {
	key, err := w.in.Token()
	if err != nil {
		return err
	}
	w.out.WriteString(yamlScalar(key) + ":")
	return w.value(depth, memberValue)
}

// plainYAML matches strings that need no quotes, except the words that YAML reads as something else.
var (
	plainYAML    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)
	reservedYAML = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
)

func yamlScalar(token json.Token) string {
	switch v := token.(type) {
	case string:
		if plainYAML.MatchString(v) && !slices.Contains(reservedYAML, strings.ToLower(v)) {
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
