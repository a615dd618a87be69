package toolargs

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

func TestExample(t *testing.T) {
	for _, tt := range []struct {
		schema string
		want   []string
		ok     bool
	}{
		{`{"type":"object"}`, nil, true},
		{`{"properties":{"what":{"type":"string"},"name":{"type":"string"}},"required":["what","name"]}`, []string{"what=hello", "name=Ada"}, true},
		{`{"properties":{"n":{"type":"integer","minimum":5}},"required":["n"]}`, []string{"n=5"}, true},
		{`{"properties":{"n":{"type":"number","maximum":1}},"required":["n"]}`, []string{"n=1"}, true},
		{`{"properties":{"n":{"type":"number","maximum":0.5}},"required":["n"]}`, nil, false},
		{`{"properties":{"n":{"type":"number","multipleOf":7}},"required":["n"]}`, nil, false},
		{`{"properties":{"unit":{"type":"string","enum":["metric","imperial"]}},"required":["unit"]}`, []string{"unit=metric"}, true},
		{`{"properties":{"unit":{"enum":[7]}},"required":["unit"]}`, []string{"unit:=7"}, true},
		{`{"properties":{"v":{"const":"2"}},"required":["v"]}`, []string{"v=2"}, true},
		{`{"properties":{"city":{"type":"string","examples":["New York"]}},"required":["city"]}`, []string{"'city=New York'"}, true},
		{`{"properties":{"limit":{"type":"integer","default":10}},"required":["limit"]}`, []string{"limit=10"}, true},
		{`{"properties":{"code":{"type":"string","minLength":8}},"required":["code"]}`, nil, false},
		{`{"properties":{"code":{"type":"string","pattern":"^[0-9]+$"}},"required":["code"]}`, nil, false},
		{`{"properties":{"list":{"type":"array","items":{}}},"required":["list"]}`, []string{"'list=[]'"}, true},
		{`{"properties":{"list":{"type":"array","minItems":1}},"required":["list"]}`, nil, false},
		{`{"properties":{"at":{"type":"string","format":"date-time"}},"required":["at"]}`, []string{"at=2026-01-31T12:00:00Z"}, true},
		{`{"$defs":{"n":{"type":"integer","minimum":3}},"properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}`, []string{"n=3"}, true},
		{`{"properties":{"--server":{"const":"nats://evil"}},"required":["--server"]}`, nil, false}, // it would be a flag
		{`{"required":["@type"]}`, nil, false},
		{`{"required":["a=b"]}`, nil, false},
		{`{"required":["a","a"]}`, nil, false},
		{`{"required":["any"]}`, []string{"any=hello"}, true},
		{`{"properties":{"odd":{"type":["null","boolean"]}},"required":["odd"]}`, []string{"odd=null"}, true},
	} {
		if got, ok := Example(json.RawMessage(tt.schema)); ok != tt.ok || ok && !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v; want %q, %v", tt.schema, got, ok, tt.want, tt.ok)
		}
	}
}

// TestSuggest: a read-only tool is shown first, and a destructive one never.
func TestSuggest(t *testing.T) {
	tool := func(name, annotations, schema string) wire.Tool {
		return wire.Tool{Name: name, InputSchema: json.RawMessage(schema), Extra: []wire.Member{{Key: "annotations", Value: json.RawMessage(annotations)}}}
	}
	const one = `{"properties":{"a":{"type":"string"}},"required":["a"]}`
	var tools []wire.Tool
	for _, next := range []struct {
		tool wire.Tool
		best string
	}{
		{tool("destroy", `{"destructiveHint":true}`, one), ""},
		{tool("plain", `{}`, `{}`), "plain"},
		{tool("with", `{}`, one), "with"},
		{tool("reads", `{"readOnlyHint":true}`, `{}`), "reads"},
		{tool("reads-one", `{"readOnlyHint":true}`, one), "reads-one"},
		{tool("other", `{"destructiveHint":false}`, one), "reads-one"},
		{tool("invalid", `{"readOnlyHint":true}`, `{"properties":{"a":{"type":"string","pattern":"^x$"}},"required":["a"]}`), "reads-one"},
	} {
		tools = append(tools, next.tool)
		if best, _, ok := Suggest(tools); best != next.best || ok != (best != "") {
			t.Errorf("after %s: %s, want %s", next.tool.Name, best, next.best)
		}
	}
}
