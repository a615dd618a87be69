package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzPairs(f *testing.F) {
	schema := properties(json.RawMessage(`{"properties":{"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"o":{"type":"object"},"a":{"type":["array","null"]}}}`))
	for _, seed := range []string{"i=1", "i=1.0", "i=-1e3", "n=1e400", "b=true", "o={}", "a=null", `x:={"a":1}`, "x:=", "=", ":=1", "x==", "x=\xff", "a=[1\nb=x\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		args := strings.Split(in, "\n")
		out, err := pairs(args, schema)
		if err != nil {
			return
		}
		var v map[string]json.RawMessage
		if err := json.Unmarshal(out, &v); err != nil {
			t.Fatalf("%q became %q: %v", args, out, err)
		}
		if len(v) > len(args) {
			t.Errorf("%q became %q", args, out)
		}
		if i, ok := v["i"]; ok && strings.ContainsAny(string(i), ".eE\"") && strings.HasPrefix(in, "i=") && len(args) == 1 {
			t.Errorf("%q became %q, which is no integer", args, out)
		}
	})
}

func TestProperties(t *testing.T) {
	for schema, want := range map[string]int{
		``: 0, `true`: 0, `{}`: 0, `[]`: 0, `{"properties":[]}`: 0, `{"properties":{"a":true,"b":{"type":5},"c":{"type":["string"]}}}`: 3,
	} {
		if got := properties(json.RawMessage(schema)); len(got) != want {
			t.Errorf("%s: %v, want %d", schema, got, want)
		}
	}
}
