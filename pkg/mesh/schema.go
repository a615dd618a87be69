package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// The bounds of checking arguments against an extension's schema, which is anybody's text: a schema beyond
// them, or one that does not compile, means that the arguments are not checked.
const (
	maxSchema    = 256 << 10
	maxCheckTime = 100 * time.Millisecond
)

// checker checks a tool's arguments. The zero checker has not been made yet.
type checker struct {
	once   sync.Once
	plain  *plainSchema       // says yes without decoding anything, where the schema is of that kind
	schema *jsonschema.Schema // nil: unchecked
	size   schemaSize
	why    error       // why not
	slow   atomic.Bool // it took too long once: it is not asked again
}

// checkers holds the checkers of one extension's spec.
type checkers struct {
	spec *Spec
	mu   sync.Mutex
	of   map[string]*checker // by own name
}

// checkerOf returns the checker of a tool, made when it is first wanted and kept until the spec changes.
func (c *Client) checkerOf(spec *Spec, t *Tool) *checker {
	v, ok := c.schemas.Load(spec.ID)
	set, _ := v.(*checkers)
	if !ok || set.spec != spec {
		set = &checkers{spec: spec, of: map[string]*checker{}}
		c.schemas.Store(spec.ID, set)
	}
	set.mu.Lock()
	k := set.of[t.Own]
	if k == nil {
		k = &checker{}
		set.of[t.Own] = k
	}
	set.mu.Unlock()
	k.once.Do(func() {
		if p, ok := plainOf(t.InputSchema); ok {
			k.plain = &p
		}
		if k.compile(t.InputSchema); k.why != nil {
			c.opt.Logger.Warn("arguments are not checked", "tool", t.Name, "reason", k.why)
		}
	})
	return k
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
		return explainInvalid(v)
	}
	return err
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
