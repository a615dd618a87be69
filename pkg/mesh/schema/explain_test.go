package schema

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestExplain: a fault names the argument, what is wrong, and what is wanted.
func TestExplain(t *testing.T) {
	for _, tt := range []struct{ schema, args, want string }{
		{`{"properties":{"below":{"type":"integer","maximum":100000000}}}`, `{"below":200000001}`, "below: got 200000001, want at most 100000000"},
		{`{"properties":{"below":{"type":"integer","minimum":2}}}`, `{"below":1}`, "below: got 1, want at least 2"},
		{`{"properties":{"x":{"exclusiveMinimum":0.5}}}`, `{"x":0.25}`, "x: got 0.25, want more than 0.5"},
		{`{"properties":{"x":{"exclusiveMaximum":1}}}`, `{"x":1}`, "x: got 1, want less than 1"},
		{`{"properties":{"day":{"pattern":"^\\d{4}$"}}}`, `{"day":"x"}`, `day: "x" does not match the pattern ^\d{4}$`},
		{`{"properties":{"x":{"multipleOf":5}}}`, `{"x":7}`, "x: got 7, want a multiple of 5"},
		{`{"required":["name","age"]}`, `{}`, "the arguments: missing properties 'name', 'age'"},
		{`{"properties":{"at":{"required":["city"]}}}`, `{"at":{}}`, "at: missing property 'city'"},
		{`{"properties":{"at":{"additionalProperties":false}}}`, `{"at":{"town":1}}`, "at: additional properties 'town' not allowed"},
		{`{"properties":{"unit":{"enum":["metric","imperial",7]}}}`, `{"unit":"x"}`, "unit: value must be one of 'metric', 'imperial', 7"},
		{`{"properties":{"code":{"pattern":"^[0-9]+$"}}}`, `{"code":"a\u001b\n"}`, `code: "a\x1b\n" does not match the pattern ^[0-9]+$`},
		{`{"properties":{"code":{"maxLength":4}}}`, `{"code":"abcde"}`, "code: maxLength: got 5, want 4"},
		{`{"properties":{"tags":{"items":{"type":["integer","null"]}}}}`, `{"tags":[1,"x"]}`, "tags[1]: got string, want null or integer"},
		{`{"properties":{"m":{"propertyNames":{"enum":["red","green"]}}}}`, `{"m":{"purple":1}}`, `the name "purple": value must be one of 'red', 'green'`},
		{`{"type":"object","maxProperties":1}`, `{"a":1,"b":2}`, "the arguments: maxProperties: got 2, want 1"},
	} {
		check, err := Compile(json.RawMessage(tt.schema))
		if err != nil {
			t.Fatalf("%s: %v", tt.schema, err)
		}
		if err := check(json.RawMessage(tt.args)); err == nil || err.Error() != tt.want {
			t.Errorf("%s of %s:\n%v, want\n%s", tt.args, tt.schema, err, tt.want)
		}
	}
}

// TestExplainLongFaults: the caller chooses the values, and the extension the schema. Neither makes the text long.
func TestExplainLongFaults(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, tt := range []struct{ schema, args string }{
		{`{"additionalProperties":false}`, `{"` + long + `":1}`},
		{`{"additionalProperties":{"type":"string"}}`, `{"` + long + `":1}`},
		{`{"required":["` + long + `"]}`, `{}`},
		{`{"properties":{"a":{"enum":["` + long + `"]}}}`, `{"a":1}`},
		{`{"properties":{"a":{"pattern":"^y"}}}`, `{"a":"` + long + `"}`},
		{`{"properties":{"a":{"maximum":1}}}`, `{"a":` + strings.Repeat("9", 400) + `}`},
		{`{"propertyNames":{"maxLength":1}}`, `{"` + long + `":1}`},
	} {
		check, err := Compile(json.RawMessage(tt.schema))
		if err != nil {
			t.Fatalf("%.80s: %v", tt.schema, err)
		}
		if err := check(json.RawMessage(tt.args)); err == nil || len(err.Error()) > 520 {
			t.Errorf("%.80s of %.80s: %v", tt.args, tt.schema, err)
		}
	}
}
