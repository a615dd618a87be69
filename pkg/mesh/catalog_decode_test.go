package mesh

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

func FuzzDecodeSpec(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { } `, `null`, `[]`, `"x"`, `{"tools":null}`, `{"tools":[]}`, `{"tools":{}}`, `{"tools":[1]}`, `{"Tools":[{}]}`,
		`{"id":"a","version":"1.0.0","tools":[{"name":"ext_a_x","tool":"x","description":"d","input_schema":{"type":"object"},"annotations":{"a":[1,{"b":"]}"}]},"n":1.0}]}`,
		`{"tools":[{"name":"\u00e9\"\\","tool":null,"description":"\ud800","input_schema": [ 1 , 2 ] ,"\u0061":1e400}, {} ]}`,
		"{\"tools\":[{\"name\":\"\xff\",\"\xff\":1}],\"id\":\"\xff\"}", `{"tools":[{"name":1}]}`, `{"id":5}`,
		`{"tools":[{"a":1}],"tools":[{"b":2}]}`, `{"tools":[{"name":"a","name":null}]}`, `{"id":"x","hooks":["a"],"priority":3} `,
		`{"tools":[{"a":"\\"},{"b":"\""}]}`, `{"t\u006fols":[]}`, `{"a":tru}`, ``, `{"tools":[{"name":"x"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want wire.Spec
		wantErr := json.Unmarshal(data, &want)
		got, err := decodeSpec(data)
		if string(bytes.TrimSpace(data)) == "null" || hasOddKey(data) {
			return // the one is stricter than the other
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: error %v, json.Unmarshal %v", data, err, wantErr)
		}
		if err != nil {
			return
		}
		if len(want.Tools) == 0 {
			want.Tools, got.Tools = nil, nil
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%q:\n%+v\njson.Unmarshal:\n%+v", data, *got, want)
		}
	})
}

// hasOddKey reports a top level member that json.Unmarshal takes for tools and decodeSpec does not, or that is
// there twice.
func hasOddKey(data []byte) bool {
	members, err := wire.Members(data)
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.Key] || len(m.Key) == len("tools") && m.Key != "tools" {
			return true
		}
		seen[m.Key] = true
	}
	return false
}
