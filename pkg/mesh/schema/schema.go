// Package schema checks a tool's arguments against its schema, so that a caller's mistake is found before the call is
// sent.
//
//	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile})
//
// It is separate from package mesh because its library compiles the meta-schemas when a program starts, which takes as
// long as the rest of the start, and only programs that call tools need it.
//
// Schemas and arguments are untrusted: what cannot be compiled, or not be checked within the limits, is not checked. For
// an ordinary schema, an object with typed members, the arguments are checked without decoding; the library checks
// arguments that do not pass, and gives the reason. The drafts from 6 to 2020-12 are supported.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// The limits of checking arguments against an extension's schema, which is untrusted: if the schema exceeds them, or does
// not compile, arguments are not checked.
const (
	maxSchema    = 256 << 10
	maxCheckTime = 100 * time.Millisecond // also a busy machine can cause it
	checkPause   = time.Minute
)

// Compile parses the schema of a tool's arguments, JSON Schema in JSON. check returns what is wrong with arguments, in
// words, at most eight faults; it returns nil if they are valid or cannot be checked. It is safe for concurrent
// use. Compile fails if arguments cannot be checked at all: the schema is invalid, refers to another document, or would
// take too much work.
func Compile(text json.RawMessage) (check func(args json.RawMessage) error, err error) {
	k := &checker{}
	if p, ok := plainOf(text); ok {
		k.plain = &p
	}
	if k.compile(text); k.why != nil {
		return nil, k.why
	}
	return k.check, nil
}

// checker checks a tool's arguments.
type checker struct {
	plain  *plainSchema       // accepts arguments without decoding them; nil if the schema is not plain
	schema *jsonschema.Schema // nil: unchecked
	size   schemaSize
	why    error        // why schema is nil
	broken atomic.Bool  // the library failed, or no arguments can be valid: the schema is not used again
	paused atomic.Int64 // when the schema is used again after a check that took too long, in Unix nanoseconds
}

// check returns what is wrong with args; nil if they are valid or cannot be checked.
func (k *checker) check(args json.RawMessage) (err error) {
	if k.plain != nil && k.plain.fits(args) {
		return nil
	}
	if k.schema == nil || k.broken.Load() || time.Now().UnixNano() < k.paused.Load() {
		return nil
	}
	if !k.size.admitsText(args) {
		return nil
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return fmt.Errorf("the arguments are not JSON: %w", err)
	}
	if !k.size.admits(instance, len(args)) {
		return nil
	}
	defer func() { // schema and arguments are untrusted: a panic of the library must not end the program
		if recover() != nil {
			k.broken.Store(true)
			err = nil
		}
	}()
	began := time.Now()
	err = k.schema.Validate(instance)
	if ended := time.Now(); ended.Sub(began) > maxCheckTime {
		k.paused.Store(ended.Add(checkPause).UnixNano())
	}
	if v, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		if refersToItself(v) {
			k.broken.Store(true)
			return nil
		}
		return explainInvalid(v)
	}
	return err
}

// refersToItself reports whether the schema, not the arguments, is at fault: nothing is valid for {"$ref":"#"}.
func refersToItself(v *jsonschema.ValidationError) bool {
	_, cycle := v.ErrorKind.(*kind.RefCycle)
	return cycle || slices.ContainsFunc(v.Causes, refersToItself)
}

// compile compiles a schema within the limits, or sets k.why. It never loads another document.
func (k *checker) compile(text json.RawMessage) {
	defer func() { // as in check
		if p := recover(); p != nil {
			k.schema, k.why = nil, fmt.Errorf("its schema cannot be compiled: %v", p)
		}
	}()
	if len(text) > maxSchema {
		k.why = fmt.Errorf("its schema of %d bytes is over the limit of %d", len(text), maxSchema)
		return
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		k.why = err
		return
	}
	if k.size, k.why = measureSchema(doc); k.why != nil {
		return
	}
	dropFormats(doc)
	c := jsonschema.NewCompiler()
	c.UseLoader(denyAll{})
	if k.why = c.AddResource("mem:schema", doc); k.why == nil {
		k.schema, k.why = c.Compile("mem:schema")
	}
}

// Fault returns what is wrong with a schema itself: it breaks the rules of its draft, or refers to something that does not exist. Its
// regular expressions are not looked at. It returns nil for a schema that Compile refuses for another reason.
func Fault(text json.RawMessage) (err error) {
	defer func() { // as in check
		if recover() != nil {
			err = nil
		}
	}()
	if len(text) > maxSchema {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if !isBounded(doc, 0, new(int)) {
		return nil
	}
	dropFormats(doc)
	c := jsonschema.NewCompiler()
	c.UseLoader(denyAll{})
	c.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) { return anyPattern(pattern), nil })
	if err = c.AddResource("mem:schema", doc); err == nil {
		_, err = c.Compile("mem:schema")
	}
	if _, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*jsonschema.JSONPointerNotFoundError](err); ok {
		return err
	}
	return nil
}

// anyPattern is a regular expression that is not compiled.
type anyPattern string

// MatchString implements jsonschema.Regexp.
func (p anyPattern) MatchString(string) bool { return true }

func (p anyPattern) String() string { return string(p) }

// dropFormats removes the formats from a schema. They are annotations, but would be checked in draft-07 and before, by other rules
// than those of the library that has written the schema: no time would fit both zod and this check.
func dropFormats(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			dropFormats(e)
		}
	case map[string]any:
		if _, ok := v["format"].(string); ok {
			delete(v, "format")
		}
		for key, e := range v {
			if !slices.Contains([]string{"const", "enum", "default", "examples"}, key) { // these are values
				dropFormats(e)
			}
		}
	}
}

// denyAll is a loader that refuses every document.
type denyAll struct{}

func (denyAll) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not loaded: a schema must be self-contained", url)
}
