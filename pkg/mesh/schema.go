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
	maxSchema      = 256 << 10
	maxSchemaDepth = 64
	maxSubschemas  = 10_000 // after following $ref
	maxCheckTime   = 100 * time.Millisecond
)

// checker checks a tool's arguments. The zero checker has not been made yet.
type checker struct {
	once   sync.Once
	plain  *plainSchema       // says yes without decoding anything, where the schema is of that kind
	schema *jsonschema.Schema // nil: unchecked
	why    error              // why not
	slow   atomic.Bool        // it took too long once: it is not asked again
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
		if k.schema, k.why = compileSchema(t.InputSchema); k.why != nil {
			c.opt.Logger.Warn("arguments are not checked", "tool", t.Name, "reason", k.why)
		}
	})
	return k
}

// check returns what is wrong with args, with JSON pointers; nil if nothing is, or nobody can tell.
func (k *checker) check(args json.RawMessage) error {
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

// compileSchema compiles a schema within the bounds. Nothing is ever loaded, from a file or from anywhere.
func compileSchema(text json.RawMessage) (_ *jsonschema.Schema, err error) {
	if len(text) > maxSchema {
		return nil, fmt.Errorf("its schema of %d bytes is over the limit of %d", len(text), maxSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if err := measureSchema(doc); err != nil {
		return nil, err
	}
	defer func() { // a library meets a stranger's text: what it cannot do must not end the program
		if p := recover(); p != nil {
			err = fmt.Errorf("its schema cannot be compiled: %v", p)
		}
	}()
	c := jsonschema.NewCompiler()
	c.UseLoader(denyAll{})
	if err := c.AddResource("mem:schema", doc); err != nil {
		return nil, err
	}
	return c.Compile("mem:schema")
}

// denyAll is a loader that loads nothing.
type denyAll struct{}

func (denyAll) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not loaded: a schema has to be self-contained", url)
}

// measureSchema bounds what validating against a schema can cost: how deep it is, and how many subschemas there
// are when every $ref is followed, once per path. A $ref to an enclosing schema counts once: how often it is
// followed depends on the arguments, which are bounded themselves.
func measureSchema(doc any) error {
	m := measure{doc: doc, left: maxSubschemas, open: map[string]bool{}}
	return m.node(doc, 0)
}

type measure struct {
	doc  any
	left int
	open map[string]bool // references being followed
}

func (m *measure) node(v any, depth int) error {
	if depth > maxSchemaDepth {
		return fmt.Errorf("its schema is nested deeper than %d", maxSchemaDepth)
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := m.node(e, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if m.left--; m.left < 0 {
			return fmt.Errorf("its schema has more than %d subschemas when every $ref is followed", maxSubschemas)
		}
		for key, e := range v {
			ref, ok := e.(string)
			if key != "$ref" || !ok {
				if err := m.node(e, depth+1); err != nil {
					return err
				}
				continue
			}
			if err := m.follow(ref, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measure) follow(ref string, depth int) error {
	target, ok := pointed(m.doc, ref)
	if !ok || m.open[ref] {
		return nil
	}
	m.open[ref] = true
	defer delete(m.open, ref)
	return m.node(target, depth+1)
}

// pointed resolves a local reference; an anchor or another document is not found, and the compiler's to judge.
func pointed(doc any, ref string) (any, bool) {
	if ref == "#" {
		return doc, true
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for _, step := range strings.Split(path, "/") {
		o, ok := doc.(map[string]any)
		if !ok {
			return nil, false
		}
		if doc, ok = o[unescape.Replace(step)]; !ok {
			return nil, false
		}
	}
	return doc, true
}
