package schema

import (
	"encoding/json"
	"testing"
)

// TestExplain: a fault is stated in words, as a person would.
func TestExplain(t *testing.T) {
	for _, tt := range []struct{ schema, args, want string }{
		{`{"properties":{"below":{"type":"integer","maximum":100000000}}}`, `{"below":200000000}`, "below is 200000000; at most 100000000"},
		{`{"properties":{"below":{"type":"integer","minimum":2}}}`, `{"below":1}`, "below is 1; at least 2"},
		{`{"properties":{"x":{"exclusiveMinimum":0.5}}}`, `{"x":0.25}`, "x is 0.25; more than 0.5"},
		{`{"properties":{"x":{"exclusiveMaximum":1}}}`, `{"x":1}`, "x is 1; less than 1"},
		{`{"properties":{"x":{"multipleOf":5}}}`, `{"x":7}`, "x is 7; a multiple of 5"},
		{`{"required":["name","age"]}`, `{}`, "name is missing; age is missing"},
		{`{"properties":{"at":{"required":["city"]}}}`, `{"at":{}}`, "at.city is missing"},
		{`{"properties":{"at":{"additionalProperties":false}}}`, `{"at":{"town":1}}`, "at.town is unknown"},
		{`{"properties":{"unit":{"enum":["metric","imperial",7]}}}`, `{"unit":"x"}`, `unit is "x", not "metric", "imperial" or 7`},
		{`{"properties":{"v":{"const":"2"}}}`, `{"v":"1"}`, `v is "1", not "2"`},
		{`{"properties":{"code":{"minLength":3,"maxLength":4}}}`, `{"code":"ab"}`, "code has 2 characters; at least 3"},
		{`{"properties":{"code":{"maxLength":4}}}`, `{"code":"abcde"}`, "code has 5 characters; at most 4"},
		{`{"properties":{"code":{"pattern":"^[0-9]+$"}}}`, `{"code":"ab"}`, `code is "ab", which does not match ^[0-9]+$`},
		{`{"properties":{"tags":{"minItems":2}}}`, `{"tags":[1]}`, "tags has 1 item; at least 2"},
		{`{"properties":{"tags":{"maxItems":1}}}`, `{"tags":[1,2]}`, "tags has 2 items; at most 1"},
		{`{"properties":{"tags":{"uniqueItems":true}}}`, `{"tags":[1,2,1]}`, "tags: items at 0 and 2 are equal"},
		{`{"properties":{"tags":{"items":{"type":["integer","null"]}}}}`, `{"tags":[1,"x"]}`, "tags[1] is a string, not null or an integer"},
		{`{"properties":{"m":{"propertyNames":{"enum":["red","green"]}}}}`, `{"m":{"purple":1}}`, `the name "purple" is "purple", not "red" or "green"`},
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
