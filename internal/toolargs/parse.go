// Package toolargs turns the words of a command line into the arguments of a tool, by the JSON Schema of its input. It also
// describes what a schema accepts, and finds an example.
package toolargs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
)

// MaxArguments limits the size of arguments read from a file or stdin.
const MaxArguments = 64 << 20

// Parse parses the arguments of a call: a JSON object, - for stdin, or key=value and key:=JSON pairs. The caller reads @file and
// replaces it by -. schema determines the type of the value in key=value; it may be empty. An error is a mistake in args.
func Parse(args []string, schema json.RawMessage, stdin io.Reader) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage("{}"), nil
	}
	if text, ok, err := wholeArguments(args, stdin); ok || err != nil {
		if err != nil {
			return nil, err
		}
		return checkObject(text)
	}
	return pairs(args, Properties(schema))
}

// wholeArguments reads arguments that are given as one JSON text.
func wholeArguments(args []string, stdin io.Reader) (text []byte, ok bool, err error) {
	arg := args[0]
	switch {
	case !strings.HasPrefix(arg, "@") && arg != "-" && !strings.HasPrefix(strings.TrimSpace(arg), "{"):
		return nil, false, nil
	case len(args) > 1:
		return nil, true, fmt.Errorf("%s already gives all arguments; remove %q", terminal.Short(arg, 30), args[1])
	case arg != "-":
		return []byte(arg), true, nil
	}
	text, err = io.ReadAll(io.LimitReader(stdin, MaxArguments+1))
	switch {
	case err != nil:
		return nil, true, fmt.Errorf("arguments: %w", err)
	case len(text) > MaxArguments:
		return nil, true, fmt.Errorf("the arguments are larger than %d MiB", MaxArguments>>20)
	}
	return text, true, nil
}

func declares(schema []Property, name string) bool {
	return slices.ContainsFunc(schema, func(p Property) bool { return p.Name == name })
}

func checkObject(text []byte) (json.RawMessage, error) {
	text = bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff"))) // Windows programs begin files with this mark
	if !json.Valid(text) {
		// Unmarshal's error has the position of the fault.
		var v any
		return nil, fmt.Errorf("arguments are not JSON: %w", json.Unmarshal(text, &v))
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, fmt.Errorf("arguments must be a JSON object, not %s", terminal.Short(string(text), 30))
	}
	return text, nil
}

// pairs builds an object from key=value and key:=JSON, in their order. It reports every mistake.
func pairs(args []string, schema []Property) (json.RawMessage, error) {
	var out bytes.Buffer
	var faults []string
	seen := map[string]bool{}
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			faults = append(faults, fmt.Sprintf("%q is not UTF-8, which JSON demands", arg))
			continue
		}
		key, value, ok := strings.Cut(arg, "=")
		raw := strings.HasSuffix(key, ":")
		key = strings.TrimSuffix(key, ":")
		if !ok || key == "" {
			faults = append(faults, fmt.Sprintf("%q is neither key=value nor a JSON object", arg))
			continue
		}
		if seen[key] {
			faults = append(faults, fmt.Sprintf("%s is given twice", key))
			continue
		}
		seen[key] = true
		if object, member, ok := strings.Cut(key, "."); ok && declares(schema, object) && !declares(schema, key) {
			inner := strings.Count(member, ".")
			faults = append(faults, fmt.Sprintf("%s is a member of %s: write all of its members as %s:='{\"%s\":…%s}'", key, object, object,
				strings.ReplaceAll(member, ".", `":{"`), strings.Repeat("}", inner)))
			continue
		}
		types := []string{"json"}
		if !raw {
			types = typesOf(schema, key)
		}
		v, err := literal(value, types)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", key, err))
			continue
		}
		sep := byte(',')
		if out.Len() == 0 {
			sep = '{'
		}
		out.WriteByte(sep)
		out.Write(plainjson.AppendString(nil, key))
		out.WriteByte(':')
		out.Write(v)
	}
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "; "))
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// literal is value as JSON of one of types; "json" means any type. A JSON literal is passed on unchanged, so that a
// number keeps all its digits.
func literal(value string, types []string) (json.RawMessage, error) {
	if len(types) == 0 || slices.Contains(types, "string") {
		return plainjson.AppendString(nil, value), nil
	}
	text := strings.TrimSpace(value)
	if json.Valid([]byte(text)) {
		is := jsonrpc.TypeOf([]byte(text))
		isWhole := is == "number" && !strings.ContainsAny(text, ".eE")
		if slices.Contains(types, "json") || slices.Contains(types, is) || isWhole && slices.Contains(types, "integer") {
			return json.RawMessage(text), nil
		}
	}
	if slices.Contains(types, "json") {
		return nil, fmt.Errorf("%s is not JSON", terminal.Short(value, 40))
	}
	return nil, fmt.Errorf("%s is not of type %s, which the tool's schema requires", terminal.Short(value, 40), words.Or(types))
}

// Property is one argument that a tool's schema declares.
type Property struct {
	Name        string
	Description string
	Required    bool

	types  []string // empty: any type
	schema json.RawMessage
}

// Choices are the values that the schema lists for the argument, each as a word of Parse.
func (p Property) Choices() (words []string) {
	var s struct {
		Enum []json.RawMessage `json:"enum"`
	}
	_ = json.Unmarshal(p.schema, &s) // absent without a list
	for _, value := range s.Enum {
		words = append(words, word(p.Name, value, p.types))
	}
	return words
}

// Properties reads the arguments that a schema declares, in the schema's order. It returns none if the schema cannot
// be read.
func Properties(schema json.RawMessage) []Property {
	v := newViewer(schema)
	all := properties(v.resolved(schema, 0))
	for i, p := range all {
		all[i].types, all[i].schema = v.types(p.schema, 0), v.values(p.schema, 0)
	}
	return all
}

// properties is Properties without types and without following references.
func properties(schema json.RawMessage) []Property {
	var top struct {
		Properties json.RawMessage `json:"properties"`
		Required   json.RawMessage `json:"required"`
	}
	if json.Unmarshal(schema, &top) != nil {
		return nil
	}
	members, err := wire.Members(top.Properties)
	if err != nil {
		return nil
	}
	var required []string
	_ = json.Unmarshal(top.Required, &required) // draft 3 has a boolean; then none is known to be required
	var out []Property
	for _, m := range members {
		var s struct {
			Description string `json:"description"`
		}
		_ = json.Unmarshal(m.Value, &s) // absent without a description
		out = append(out, Property{Name: m.Key, Description: s.Description, Required: slices.Contains(required, m.Key), schema: m.Value})
	}
	return out
}

func typesOf(schema []Property, key string) []string {
	for _, p := range schema {
		if p.Name == key {
			return p.types
		}
	}
	return nil
}
