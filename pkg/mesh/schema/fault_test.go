package schema

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// bomb returns a schema in which each of n definitions refers twice to the next, with ref making the reference from its
// number.
func bomb(n int, def func(i int) string, ref func(i int) string) string {
	var defs []string
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{%s"allOf":[{"$ref":%q},{"$ref":%q}]}`, i, def(i), ref(i+1), ref(i+1)))
	}
	defs = append(defs, fmt.Sprintf(`"d%d":{%s"type":"object"}`, n, def(n)))
	return fmt.Sprintf(`{"$defs":{%s},"$ref":%q}`, strings.Join(defs, ","), ref(0))
}

// TestHostileSchemas checks that no schema can make a caller compute for long or use much memory: arguments are not
// checked if the cost cannot be limited.
func TestHostileSchemas(t *testing.T) {
	none := func(int) string { return "" }
	deep := strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)
	for _, tt := range []struct{ name, schema, args string }{
		{"by pointers", bomb(40, none, func(i int) string { return fmt.Sprintf("#/$defs/d%d", i) }), `{}`},
		{"by encoded pointers", bomb(40, none, func(i int) string { return fmt.Sprintf("#/%%24defs/d%d", i) }), `{}`},
		{"by anchors", bomb(40, func(i int) string { return fmt.Sprintf(`"$anchor":"d%d",`, i) }, func(i int) string { return fmt.Sprintf("#d%d", i) }), `{}`},
		{"by dynamic anchors", strings.ReplaceAll(bomb(40, func(i int) string { return fmt.Sprintf(`"$dynamicAnchor":"d%d",`, i) },
			func(i int) string { return fmt.Sprintf("#d%d", i) }), "$ref", "$dynamicRef"), `{}`},
		{"by ids", bomb(40, func(i int) string { return fmt.Sprintf(`"$id":"http://x/d%d",`, i) }, func(i int) string { return fmt.Sprintf("http://x/d%d", i) }), `{}`},
		{"another base", `{"$defs":{"d0":{},"d1":{},"x":{"$id":"http://x/y",` +
			strings.TrimPrefix(bomb(40, none, func(i int) string { return fmt.Sprintf("#/$defs/d%d", i) }), "{") + `},"$ref":"#/$defs/x"}`, `{}`},
		{"by the schema's own URL", bomb(40, none, func(i int) string { return fmt.Sprintf("mem:schema#/$defs/d%d", i) }), `{}`},
		{"through a list", `{"allOf":[{"type":"object"},` + strings.Join(func() (out []string) {
			for i := range 40 {
				out = append(out, fmt.Sprintf(`{"allOf":[{"$ref":"#/allOf/%d"},{"$ref":"#/allOf/%d"}]}`, i, i))
			}
			return out
		}(), ",") + `]}`, `{}`},
		{"by recursion", `{"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["b"]},{"properties":{"a":{"$ref":"#"}},"required":["b"]}]}`, deep},
		{"by $recursiveRef", `{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"anyOf":[{"properties":{"a":{"$recursiveRef":"#"}},"required":["b"]},{"properties":{"a":{"$recursiveRef":"#"}},"required":["b"]}]}`, deep},
		{"in a circle", `{"allOf":[{"$ref":"#"}]}`, `{}`},
		{"in a wider circle", `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`, `{}`},
		{"by unique items", `{"properties":{"a":{"uniqueItems":true}}}`, `{"a":[` + strings.Repeat(`[1],`, 50_000) + `{}]}`},
		{"by unique items that differ", `{"properties":{"a":{"uniqueItems":true}}}`, `{"a":[` + func() string {
			var b strings.Builder
			for i := range 100_000 {
				fmt.Fprintf(&b, `[%d],`, i)
			}
			return b.String()
		}() + `{}]}`},
		{"by many wrong values", `{"properties":{"a":{"items":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}`, `{"a":[` + strings.Repeat(`1,`, 2_000_000) + `1]}`},
		{"by a pattern for a long text", `{"properties":{"a":{"pattern":"` + strings.Repeat(`(x{0,900}y?){0,1}`, 10) + `z"}}}`, `{"a":"` + strings.Repeat("x", 1<<20) + `"}`},
		{"by a pattern", `{"properties":{"a":{"pattern":"` + strings.Repeat(`a{1000}`, 3000) + `"}}}`, `{"a":"x"}`},
		{"by many patterns", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"pattern":"(a{1000}b{1000}c{1000})"},`, 6000), ",") + `]}`, `{"a":"x"}`},
		{"by pattern properties", `{"patternProperties":{` + strings.Repeat(`"x{1000}y{1000}z{1000}":true,`, 1) + func() string {
			var b strings.Builder
			for i := range 3000 {
				fmt.Fprintf(&b, `"a{1000}b{1000}c{1000}%d":true,`, i)
			}
			return b.String()
		}() + `"x":true}}`, `{"a":"x"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !json.Valid([]byte(tt.schema)) || !json.Valid([]byte(tt.args)) {
				t.Fatal("the test's own JSON is broken")
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			done := make(chan error, 1)
			go func() { // left running if the test fails
				k := &checker{}
				k.compile([]byte(tt.schema))
				if k.schema == nil {
					done <- k.why
					return
				}
				done <- k.check([]byte(tt.args))
			}()
			select {
			case err := <-done:
				t.Log(err)
			case <-time.After(time.Minute): // without limits they take hours
				t.Error("still computing after a minute")
			}
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
				t.Errorf("took %d MiB", grown>>20)
			}
		})
	}
}

// TestSchemaThatRefersToItself: nothing is valid for {"$ref":"#"}, but the tool must remain callable.
func TestSchemaThatRefersToItself(t *testing.T) {
	for _, text := range []string{
		`{"$ref":"#"}`, `{"type":"object","$ref":"#"}`, `{"allOf":[{"$ref":"#"}]}`, `{"properties":{"a":{"$ref":"#/properties/a"}}}`,
		`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
	} {
		check, err := Compile(json.RawMessage(text))
		if err != nil {
			continue // not checked either
		}
		for range 2 {
			if err := check(json.RawMessage(`{"a":1}`)); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	check, err := Compile(json.RawMessage(`{"type":"object","properties":{"child":{"$ref":"#"}}}`))
	if err != nil || check(json.RawMessage(`{"child":{"child":{}}}`)) != nil || check(json.RawMessage(`{"child":{"child":1}}`)) == nil {
		t.Errorf("a schema of trees is not checked: %v", err)
	}
}
