package jsonrpc

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestEach(t *testing.T) {
	var got []string
	err := Each([]byte(` { "a" : 1.0 , "b\u0062":{"a":[2]}, "a":"x" } `), func(key, value []byte) bool {
		got = append(got, fmt.Sprintf("%s=%s", key, value))
		return true
	})
	if want := `a=1.0 b\u0062={"a":[2]} a="x"`; err != nil || strings.Join(got, " ") != want {
		t.Errorf("= %v, %v, want %s", got, err, want)
	}
	n := 0
	if err := Each([]byte(`{"a":1,"b":2,!`), func(_, _ []byte) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("stopped after %d with %v", n, err)
	}
	for _, bad := range []string{``, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1}x`, `{"a":NaN}`} {
		if err := Each([]byte(bad), func(_, _ []byte) bool { return true }); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

func TestElements(t *testing.T) {
	var got []string
	err := Elements([]byte(` [ 1.0 , "]" ,{"a":[2]},[ ], null ] `), func(element []byte) bool {
		got = append(got, string(element))
		return true
	})
	if want := `1.0 "]" {"a":[2]} [ ] null`; err != nil || strings.Join(got, " ") != want {
		t.Errorf("= %v, %v, want %s", got, err, want)
	}
	n := 0
	if err := Elements([]byte(`[1,2,!`), func([]byte) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("stopped after %d with %v", n, err)
	}
	if err := Elements([]byte(` []`), func([]byte) bool { t.Error("called for an empty array"); return true }); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{``, `{}`, `[`, `[1`, `[1,`, `[1,]`, `[,]`, `[1 2]`, `[}`, `[1]x`, `[NaN]`, `["]`} {
		if err := Elements([]byte(bad), func([]byte) bool { return true }); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

// FuzzEach compares Each and Elements with encoding/json.
func FuzzEach(f *testing.F) {
	const whole = ` { "a" : [ 1 , -2.5e3 , "x\"]}" , { } , [ [ ] ] , null ] , "\\" : "\\" , "\"" : { "b" : true } , "" : "" } `
	for end := range len(whole) + 1 {
		f.Add([]byte(whole[:end]))
	}
	for _, seed := range []string{`[]`, `{}`, `{,}`, `[,]`, `[1,]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{1:2}`, `[}`, `{]`, `[1 2]`, `["]`, `["\"]`, `["\\"]`, `["\\\""]`, `[[1],[2,[3]]]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var elements []string
		err := Elements(data, func(element []byte) bool {
			elements = append(elements, string(element))
			return true
		})
		if err != nil && strings.Contains(err.Error(), "nested deeper") {
			return
		}
		var array []json.RawMessage
		if json.Unmarshal(data, &array) == nil && array != nil {
			if err != nil || len(elements) != len(array) {
				t.Fatalf("%q: elements %q, %v", data, elements, err)
			}
			for n := range array {
				if elements[n] != string(array[n]) {
					t.Errorf("%q: element %q, want %q", data, elements[n], array[n])
				}
			}
		} else if err == nil {
			t.Errorf("%q is not an array", data)
		}
		got := map[string]string{}
		err = Each(data, func(key, value []byte) bool { // of members with one key, the last one counts
			var name string
			if err := json.Unmarshal([]byte(`"`+string(key)+`"`), &name); err != nil {
				t.Fatalf("%q: key %q", data, key)
			}
			got[name] = string(value)
			return true
		})
		if err != nil && strings.Contains(err.Error(), "nested deeper") {
			return
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil || object == nil {
			if err == nil {
				t.Errorf("%q is not an object", data)
			}
			return
		}
		want := map[string]string{}
		for name, value := range object {
			want[name] = string(value)
		}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: members %q, %v", data, got, err)
		}
	})
}
