package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSchemaCheck(t *testing.T) {
	const weather = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","maximum":9007199254740992}},"required":["city"],"additionalProperties":false}`
	for _, tt := range []struct {
		name, schema, args string
		want               []string // parts of the error; none: it fits
	}{
		{"fits", weather, `{"city":"Ghent","days":3}`, nil},
		{"missing and wrong", weather, `{"days":"three"}`, []string{"/: missing property 'city'", "/days: got string, want integer"}},
		{"unknown", weather, `{"city":"Ghent","town":1}`, []string{"town"}},
		{"exact numbers", weather, `{"city":"Ghent","days":9007199254740993}`, []string{"/days", "maximum"}},
		{"nested", `{"properties":{"a":{"items":{"type":"number"}}}}`, `{"a":[1,"x"]}`, []string{"/a/1: got string, want number"}},
		{"recursive", `{"type":"object","properties":{"next":{"$ref":"#"}}}`, `{"next":{"next":7}}`, []string{"/next/next"}},
		{"anything", `{"type":"object"}`, `{"x":1e400}`, nil},
		{"does not compile: unchecked", `{"type":"strin"}`, `{}`, nil},
		{"a file is not read: unchecked", `{"$ref":"file:///etc/hostname"}`, `{}`, nil},
		{"another host is not asked: unchecked", `{"$ref":"http://127.0.0.1:1/x"}`, `{}`, nil},
		{"look-ahead: unchecked", `{"properties":{"a":{"pattern":"(?!x)"}}}`, `{"a":"x"}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &checker{}
			k.schema, k.why = compileSchema(json.RawMessage(tt.schema))
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

func TestAnyObject(t *testing.T) {
	for schema, want := range map[string]bool{
		`{"type":"object"}`: true, `{"$schema":"x","type":"object","properties":{},"description":"d"}`: true,
		`{}`: false, `{"type":"object","required":["a"]}`: false, `{"type":"string"}`: false, `true`: false,
		`{"type":"object","properties":{"a":{}}}`: false,
	} {
		if got := anyObject(json.RawMessage(schema)); got != want {
			t.Errorf("%s: %v", schema, got)
		}
	}
	k := &checker{object: true}
	for args, ok := range map[string]bool{`{}`: true, " \n{\"a\":1}": true, `[]`: false, `7`: false, ``: false, " ": false} {
		if err := k.check(json.RawMessage(args)); (err == nil) != ok {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestSchemaBounds holds hostile schemas off: each would cost seconds or the process.
func TestSchemaBounds(t *testing.T) {
	levels := func(n int) string { // 2^n alternatives in a few hundred bytes
		defs := []string{`"l0":{"type":"string"}`}
		for i := range n {
			defs = append(defs, fmt.Sprintf(`"l%d":{"anyOf":[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%d"}]}`, i+1, i, i))
		}
		return fmt.Sprintf(`{"$defs":{%s},"$ref":"#/$defs/l%d"}`, strings.Join(defs, ","), n)
	}
	for name, schema := range map[string]string{
		"large":       `{"description":"` + strings.Repeat("x", maxSchema) + `"}`,
		"deep":        strings.Repeat(`{"not":`, 100) + `{}` + strings.Repeat(`}`, 100),
		"exponential": levels(22),
	} {
		began := time.Now()
		if _, err := compileSchema(json.RawMessage(schema)); err == nil {
			t.Errorf("%s: compiled", name)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
	for _, schema := range map[string]string{"self": `{"$ref":"#"}`, "small": levels(4)} {
		k := &checker{}
		k.schema, k.why = compileSchema(json.RawMessage(schema))
		k.check(json.RawMessage(`{"a":1}`)) // ends, and does not end the process
	}
}

func BenchmarkSchemaCheck(b *testing.B) {
	k := &checker{}
	k.schema, k.why = compileSchema(json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`))
	args := json.RawMessage(`{"text":"` + strings.Repeat("x", 240) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := k.check(args); err != nil {
			b.Fatal(err)
		}
	}
}
