package plainjson_test

import (
	"encoding/json"
	"testing"

	"github.com/extmesh/extmesh/internal/plainjson"
)

// FuzzScan compares with encoding/json. Text that is not valid JSON may be accepted, but must not cause a panic.
func FuzzScan(f *testing.F) {
	const whole = ` { "a" : [ 1 , -2.5e3 , "x\"]}" , { } , [ [ ] ] , null ] , "\\" : "\\" , "\"" : { "b" : true } , "" : "" } `
	for end := range len(whole) + 1 {
		f.Add([]byte(whole[:end]))
	}
	for _, seed := range []string{`[]`, `{}`, `{,}`, `[,]`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{1:2}`, `[}`, `{]`, `[1 2]`, `["]`, `["\"]`, `["\\"]`, `["\\\""]`, `[[1],[2,[3]]]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var keys, values, elements []string
		memberErr := plainjson.EachMember(data, func(key, value []byte) error {
			keys, values = append(keys, string(key)), append(values, string(value))
			return nil
		})
		elementErr := plainjson.EachElement(data, func(element []byte) error {
			elements = append(elements, string(element))
			return nil
		})
		var array []json.RawMessage
		if json.Unmarshal(data, &array) == nil && array != nil {
			if elementErr != nil || len(elements) != len(array) {
				t.Fatalf("%q: elements %q, %v", data, elements, elementErr)
			}
			for n := range array {
				if elements[n] != string(array[n]) {
					t.Errorf("%q: element %q, want %q", data, elements[n], array[n])
				}
			}
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) == nil && object != nil {
			if memberErr != nil {
				t.Fatalf("%q: %v", data, memberErr)
			}
			for n, key := range keys { // of members with one key, the last one counts
				var name string
				if err := json.Unmarshal([]byte(key), &name); err != nil {
					t.Fatalf("%q: key %q", data, key)
				}
				object[name] = json.RawMessage(values[n])
			}
			var want map[string]json.RawMessage
			_ = json.Unmarshal(data, &want)
			for name := range want {
				if string(object[name]) != string(want[name]) {
					t.Errorf("%q: member %q is %q, want %q", data, name, object[name], want[name])
				}
			}
			if len(object) != len(want) {
				t.Errorf("%q: members %q", data, keys)
			}
		}
	})
}
