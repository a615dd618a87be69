package mesh

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// inputSchema derives the schema of a tool's arguments from its type. Types that decode themselves have a schema that their
// decoders accept: jsonschema would describe their fields.
func inputSchema[In any]() (*jsonschema.Schema, error) {
	types := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {}, // any JSON, and not a list of bytes
	}
	in := reflect.TypeFor[In]()
	seen := map[reflect.Type]bool{in: true}
	addFieldTypes(types, in, seen)
	schema, err := jsonschema.For[In](&jsonschema.ForOptions{TypeSchemas: types})
	if err == nil && schema.Type == "" && in.Kind() == reflect.Struct {
		schema.Type = "object"
	}
	return schema, err
}

// described are the types with decoders that jsonschema describes itself.
var described = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[slog.Level](), reflect.TypeFor[big.Int](),
	reflect.TypeFor[big.Rat](), reflect.TypeFor[big.Float](), reflect.TypeFor[json.RawMessage]()}

// addType adds the schema of a type that decodes itself, or those of the types in it.
func addType(types map[reflect.Type]*jsonschema.Schema, t reflect.Type, seen map[reflect.Type]bool) {
	if seen[t] || slices.Contains(described, t) {
		return
	}
	seen[t] = true
	switch p := reflect.PointerTo(t); {
	case t.Kind() == reflect.Interface:
	case t.Kind() != reflect.Pointer && p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		types[t] = &jsonschema.Schema{Types: []string{"null", "boolean", "number", "string", "array", "object"}}
	case t.Kind() != reflect.Pointer && p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		types[t] = &jsonschema.Schema{Type: "string"}
	default:
		addFieldTypes(types, t, seen)
	}
}

func addFieldTypes(types map[reflect.Type]*jsonschema.Schema, t reflect.Type, seen map[reflect.Type]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		addType(types, t.Elem(), seen)
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if !f.Anonymous && f.IsExported() { // jsonschema describes the fields of an embedded struct, not its type
				addType(types, f.Type, seen)
			}
		}
	}
}

// decodeArguments decodes arguments that fit the schema, at every level: encoding/json would ignore the case of names, take null
// for any zero value and leave out what is missing.
func decodeArguments[In any](args json.RawMessage, schema *jsonschema.Schema) (in In, err error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var members map[string]any
	if err := dec.Decode(&members); err != nil {
		return in, errors.New("its arguments are not an object")
	}
	c := argumentCheck{}
	if _, ok := members["_meta"]; ok { // it is the context of the call, not input of the tool; the request still has it
		delete(members, "_meta")
		c.changed = true
	}
	c.value(members, schema, "")
	switch {
	case len(c.missing) > 0:
		return in, fmt.Errorf("it needs %s", strings.Join(c.missing, ", "))
	case c.wrong != "":
		return in, errors.New(c.wrong)
	case c.changed:
		if args, err = plainjson.Marshal(members); err != nil {
			return in, err
		}
	}
	dec = json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields()
	return in, dec.Decode(&in)
}

// argumentCheck compares decoded arguments with a schema.
type argumentCheck struct {
	missing []string
	wrong   string // the first other mistake
	changed bool   // the arguments have to be encoded again
}

// value checks a value, and returns what takes its place.
func (c *argumentCheck) value(v any, s *jsonschema.Schema, path string) any {
	if s == nil {
		return v
	}
	switch v := v.(type) {
	case nil:
		if s.Type != "" && s.Type != "null" || len(s.Types) > 0 && !slices.Contains(s.Types, "null") {
			c.mistake("%s is null", path)
		}
	case map[string]any:
		c.object(v, s, path)
	case []any:
		for i := range v {
			v[i] = c.value(v[i], s.Items, fmt.Sprintf("%s[%d]", path, i))
		}
	case json.Number:
		if (s.Type == "integer" || slices.Contains(s.Types, "integer")) && strings.ContainsAny(v.String(), ".eE") {
			return c.integer(v)
		}
	}
	return v
}

func (c *argumentCheck) object(members map[string]any, s *jsonschema.Schema, path string) {
	at := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	for _, name := range s.Required {
		if _, ok := members[name]; !ok {
			c.missing = append(c.missing, at(name))
		}
	}
	closed := s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil // {"not":{}} is false
	for _, name := range slices.Sorted(maps.Keys(members)) {
		switch p := s.Properties[name]; {
		case p != nil:
			members[name] = c.value(members[name], p, at(name))
		case closed:
			c.mistake("%s is unknown", at(name))
		default:
			members[name] = c.value(members[name], s.AdditionalProperties, at(name))
		}
	}
}

func (c *argumentCheck) mistake(format, path string) {
	if c.wrong == "" {
		c.wrong = fmt.Sprintf(format, path)
	}
}

// integer returns an integer that is written as 6.0 or 1e3, as callers with floating-point numbers only do, in digits.
func (c *argumentCheck) integer(n json.Number) json.Number {
	f, err := n.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return n // decoding it fails
	}
	c.changed = true
	return json.Number(strconv.FormatInt(int64(f), 10))
}
