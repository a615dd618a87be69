package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestSchemaCheck(t *testing.T) {
	const weather = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","maximum":9007199254740992}},"required":["city"],"additionalProperties":false}`
	for _, tt := range []struct {
		name, schema, args string
		want               []string // parts of the error; empty if the arguments are valid
	}{
		{"fits", weather, `{"city":"Ghent","days":3}`, nil},
		{"missing and wrong", weather, `{"days":"three"}`, []string{"missing property 'city'", "days: got string, want integer"}},
		{"unknown", weather, `{"city":"Ghent","town":1}`, []string{"additional properties 'town' not allowed"}},
		{"exact numbers", weather, `{"city":"Ghent","days":9007199254740993}`, []string{"days: got 9007199254740993, want at most 9007199254740992"}},
		{"nested", `{"properties":{"a":{"items":{"type":"number"}}}}`, `{"a":[1,"x"]}`, []string{"a[1]: got string, want number"}},
		{"recursive", `{"type":"object","properties":{"next":{"$ref":"#"}}}`, `{"next":{"next":7}}`, []string{"next.next: got number, want object"}},
		{"a format of draft-07 is an annotation", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"at":{"type":"string","format":"time"},"format":{"type":"string"}}}`, `{"at":"12:00","format":"x"}`, nil},
		{"a member with the name format", `{"properties":{"format":{"enum":[{"format":"a"}]}}}`, `{"format":{}}`, []string{"format"}},
		{"an encoded reference", `{"properties":{"a":{"$ref":"#/$defs/A%3CB%3E"}},"$defs":{"A<B>":{"type":"number"}}}`, `{"a":"x"}`, []string{"a: got string, want number"}},
		{"an encoded slash", `{"properties":{"a":{"$ref":"#/$defs%2Fx%2Fy"}},"$defs":{"x/y":{"type":"string"},"x":{"y":{"type":"number"}}}}`, `{"a":"x"}`, []string{"a: got string, want number"}},
		{"anything", `{"type":"object"}`, `{"x":1e400}`, nil},
		{"does not compile: unchecked", `{"type":"strin"}`, `{}`, nil},
		{"a file is not read: unchecked", `{"$ref":"file:///etc/hostname"}`, `{}`, nil},
		{"another host is not asked: unchecked", `{"$ref":"http://127.0.0.1:1/x"}`, `{}`, nil},
		{"look-ahead: unchecked", `{"properties":{"a":{"pattern":"(?!x)"}}}`, `{"a":"x"}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &checker{}
			k.compile(json.RawMessage(tt.schema))
			if strings.HasSuffix(tt.name, "unchecked") != (k.why != nil) {
				t.Fatalf("compiled with %v", k.why)
			}
			err := k.check(json.RawMessage(tt.args))
			if (err != nil) != (len(tt.want) > 0) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %v lacks %q", err, part)
				}
			}
		})
	}
}

// TestPlainSchema compares plainSchema with the library: it may accept only what the library accepts.
func TestPlainSchema(t *testing.T) {
	schemas := map[string]bool{ // the schema, and whether it is plain
		`{"type":"object"}`: true,
		`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{},"description":"d"}`:         true,
		`{"type":"object","properties":{"a":{"type":"string","description":"x"},"b":{"type":"number"}},"required":["a"]}`:      true,
		`{"type":"object","properties":{"a":{"type":"boolean"},"c":{}},"additionalProperties":false}`:                          true,
		`{"type":"object","properties":{"a":{"type":"array"},"b":{"type":"null"},"c":{"type":"object"}},"required":["a","b"]}`: true,
		`{}`: false, `true`: false, `{"type":"string"}`: false,
		`{"type":"object","properties":{"a":{"type":"integer"}}}`:              false,
		`{"type":"object","properties":{"a":{"type":"string","minLength":1}}}`: false,
		`{"type":"object","minProperties":1}`:                                  false,
	}
	args := []string{`{}`, `{"a":"x"}`, `{"a":"x","b":1e400}`, `{"b":1}`, `{"a":1}`, `{"a":true,"c":null}`, `{"a":false,"d":1}`,
		`{"a":[],"b":null,"c":{}}`, `{"a":[1,{"b":2}],"b":null}`, `{"\u0061":"x"}`, `{"a":"x","a":7}`, `{"a":7,"a":"x"}`, `[]`, `7`, ` {"a" : "x" } `}
	for schema, plain := range schemas {
		p, ok := plainOf(json.RawMessage(schema))
		if ok != plain {
			t.Errorf("%s: plain %v", schema, ok)
		}
		if !ok {
			continue
		}
		k := &checker{}
		k.compile(json.RawMessage(schema))
		library, err := k.schema, k.why
		if err != nil {
			t.Fatal(err)
		}
		yes := 0
		for _, a := range args {
			if !p.fits(json.RawMessage(a)) {
				continue
			}
			yes++
			if err := (&checker{schema: library}).check(json.RawMessage(a)); err != nil {
				t.Errorf("%s passes %s, the library returns %v", schema, a, err)
			}
		}
		if yes == 0 {
			t.Errorf("%s: accepts nothing", schema)
		}
	}
}

// TestHugeNumbers: the library would compute with all the digits of 1e999999.
func TestHugeNumbers(t *testing.T) {
	for _, text := range []string{`{"minimum":1e999999}`, `{"enum":[1E-999999]}`, `{"const":1e99999999999999999999}`,
		`{"minimum":1e9223372036854775807}`, `{"minimum":1e-9223372036854775808}`} {
		if _, err := Compile(json.RawMessage(text)); err == nil {
			t.Errorf("%s is compiled", text)
		}
	}
	k := &checker{}
	k.compile([]byte(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}}`))
	for args, checked := range map[string]bool{
		`{"a":[1e400,12345678901234567890]}`:                                         true,
		`{"a":[` + strings.TrimSuffix(strings.Repeat("1e999999,", 1000), ",") + `]}`: false,
	} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(args))
		if err != nil {
			t.Fatal(err)
		}
		if k.size.admits(v, len(args)) != checked {
			t.Errorf("%.40s: checked %v", args, !checked)
		}
	}
}

// TestSchemaBounds: hostile schemas are refused; each would take seconds or crash the process.
func TestSchemaBounds(t *testing.T) {
	levels := func(n int) string { // 2^n alternatives in a few hundred bytes
		defs := []string{`"l0":{"type":"string"}`}
		for i := range n {
			defs = append(defs, fmt.Sprintf(`"l%d":{"anyOf":[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%d"}]}`, i+1, i, i))
		}
		return fmt.Sprintf(`{"$defs":{%s},"$ref":"#/$defs/l%d"}`, strings.Join(defs, ","), n)
	}
	for name, schema := range map[string]string{
		"large":                    `{"description":"` + strings.Repeat("x", maxSchema) + `"}`,
		"deep":                     strings.Repeat(`{"not":`, 100) + `{}` + strings.Repeat(`}`, 100),
		"exponential":              levels(22),
		"values behind references": `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"$ref":"#/x"},`, 6000), ",") + `],"x":[` + strings.TrimSuffix(strings.Repeat(`[0,0,0,0,0,0,0,0,0],`, 5000), ",") + `]}`,
	} {
		began := time.Now()
		k := &checker{}
		if k.compile(json.RawMessage(schema)); k.why == nil {
			t.Errorf("%s: compiled", name)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: took %s", name, took)
		}
	}
	for _, schema := range map[string]string{"self": `{"$ref":"#"}`, "small": levels(4)} {
		k := &checker{}
		k.compile(json.RawMessage(schema))
		k.check(json.RawMessage(`{"a":1}`)) // must return and must not crash the process
	}
}

func BenchmarkSchemaCheck(b *testing.B) {
	k := &checker{}
	k.compile(json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`))
	p, ok := plainOf(json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`))
	if !ok {
		b.Fatal("not plain")
	}
	for _, size := range []int{256, 16 << 10} {
		args := json.RawMessage(`{"text":"` + strings.Repeat("x", size-11) + `"}`)
		for name, k := range map[string]*checker{"library": {schema: k.schema}, "plain": {schema: k.schema, plain: &p}} {
			b.Run(fmt.Sprintf("%s/%dB", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := k.check(args); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestFault(t *testing.T) {
	many := make([]string, 0, 5000)
	for i := range cap(many) {
		many = append(many, fmt.Sprintf(`"a%d":{"minimum":1e999999}`, i))
	}
	for schema, faulty := range map[string]bool{
		`{"type":"object"}`: false, `{"required":true}`: true, `{"properties":{"a":{"type":"any"}}}`: true, `{"$ref":"#/$defs/a"}`: true,
		`{"pattern":"(?!a)","patternProperties":{"(?<=a)":{}}}`: false, `{"$schema":"http://json-schema.org/draft-07/schema#","pattern":"(?i)","format":"regex"}`: false,
		`{"$schema":"https://example.com/x"}`: false, `{"$dynamicRef":"#a"}`: false, `{"properties":{` + strings.Join(many, ",") + `}}`: false, `[`: true,
	} {
		if err := Fault([]byte(schema)); (err != nil) != faulty {
			t.Errorf("%.100s: %v", schema, err)
		}
	}
	if isBounded(json.Number("1e999999"), 0, new(int)) || isBounded([]any{map[string]any{"minimum": json.Number("1e401")}}, 0, new(int)) {
		t.Error("numbers that take much memory are compiled")
	}
}
