// Package schema checks a tool's arguments against its schema, so that a mistake is found before it is sent.
//
//	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile})
//
// It is apart from package mesh because of its library, which compiles the schemas of schemas as a program starts: that
// takes as long as the rest of the start, and only those who call have a use for it.
//
// Both texts are strangers': what cannot be compiled, or checked within bounds, is not checked. An ordinary schema, an
// object whose members have types, is held against the arguments without decoding them; what that does not pass
// goes to the library, which knows why not. All drafts from 4 to 2020-12 are known.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// The bounds of checking arguments against an extension's schema, which is anybody's text: a schema beyond
// them, or one that does not compile, means that the arguments are not checked.
const (
	maxSchema    = 256 << 10
	maxCheckTime = 100 * time.Millisecond
)

// Compile reads the schema of a tool's arguments, JSON Schema in JSON. check says what is wrong with arguments, with JSON
// pointers, at most eight faults of them; it returns nil where nothing is wrong, or nobody can tell. It may be called
// from many goroutines. The error says why arguments cannot be checked: the schema is broken, refers to something
// outside of it, or would be too much work.
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
	plain  *plainSchema       // says yes without decoding anything, where the schema is of that kind
	schema *jsonschema.Schema // nil: unchecked
	size   schemaSize
	why    error       // why not
	slow   atomic.Bool // it took too long once, or nothing can fit the schema: it is not used again
}

// check returns what is wrong with args, with JSON pointers; nil if nothing is, or nobody can tell.
func (k *checker) check(args json.RawMessage) (err error) {
	if k.plain != nil && k.plain.fits(args) {
		return nil
	}
	if k.schema == nil || k.slow.Load() {
		return nil
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err != nil {
		return fmt.Errorf("the arguments are not JSON: %w", err)
	}
	if k.size.cost(instance, len(args)) > maxCost {
		return nil
	}
	defer func() { // a library meets two strangers' texts: what it cannot do must not end the program
		if recover() != nil {
			k.slow.Store(true)
			err = nil
		}
	}()
	began := time.Now()
	err = k.schema.Validate(instance)
	if time.Since(began) > maxCheckTime {
		k.slow.Store(true)
	}
	if v, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		if refersToItself(v) {
			k.slow.Store(true)
			return nil
		}
		return explainInvalid(v)
	}
	return err
}

// refersToItself reports a fault of the schema, not of the arguments: {"$ref":"#"}, which nothing fits.
func refersToItself(v *jsonschema.ValidationError) bool {
	_, cycle := v.ErrorKind.(*kind.RefCycle)
	return cycle || slices.ContainsFunc(v.Causes, refersToItself)
}

// maxFaults is how many faults one error names.
const maxFaults = 8

// explainInvalid lists the innermost faults: the pointer to the value, and what is wrong with it.
func explainInvalid(v *jsonschema.ValidationError) error {
	english := message.NewPrinter(language.English)
	var faults []string
	var walk func(*jsonschema.ValidationError)
	walk = func(v *jsonschema.ValidationError) {
		if len(v.Causes) == 0 && len(faults) < maxFaults {
			pointer := "/" + strings.Join(v.InstanceLocation, "/")
			faults = append(faults, fmt.Sprintf("%s: %s", clipText(pointer, 128), clipText(v.ErrorKind.LocalizedString(english), 256)))
		}
		for _, cause := range v.Causes {
			walk(cause)
		}
	}
	walk(v)
	return errors.New(strings.Join(faults, "; "))
}

func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// compile makes k of a schema within the bounds. Nothing is ever loaded, from a file or from anywhere.
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
	c := jsonschema.NewCompiler()
	c.UseLoader(denyAll{})
	if k.why = c.AddResource("mem:schema", doc); k.why == nil {
		k.schema, k.why = c.Compile("mem:schema")
	}
}

// denyAll is a loader that loads nothing.
type denyAll struct{}

func (denyAll) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not loaded: a schema has to be self-contained", url)
}
