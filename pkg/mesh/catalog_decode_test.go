package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
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
		want, wantErr := plainSpec(data)
		got, err := decodeSpec(data)
		if string(bytes.TrimSpace(data)) == "null" || hasOddKey(data) {
			return // the one is stricter than the other
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: error %v, of encoding/json %v", data, err, wantErr)
		}
		if err != nil {
			return
		}
		if len(want.Tools) == 0 {
			want.Tools, got.Tools = nil, nil
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%q:\n%+v\nencoding/json:\n%+v", data, *got, want)
		}
	})
}

// plainSpec decodes a Spec with encoding/json alone.
func plainSpec(data []byte) (s wire.Spec, err error) {
	var with struct {
		wire.Spec
		Tools []json.RawMessage `json:"tools"`
	}
	if err := json.Unmarshal(data, &with); err != nil {
		return s, err
	}
	s = with.Spec
	for _, text := range with.Tools {
		t, err := plainTool(text)
		if err != nil {
			return s, err
		}
		s.Tools = append(s.Tools, t)
	}
	return s, nil
}

// plainTool decodes a Tool with encoding/json alone. A map would lose the order of its members.
func plainTool(data []byte) (t wire.Tool, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, _ := dec.Token(); open != json.Delim('{') {
		return t, errors.New("not an object")
	}
	for err == nil && dec.More() {
		key, _ := dec.Token()
		var value json.RawMessage
		_ = dec.Decode(&value)
		switch key {
		case "name":
			err = json.Unmarshal(value, &t.Name)
		case "tool":
			err = json.Unmarshal(value, &t.Own)
		case "description":
			err = json.Unmarshal(value, &t.Description)
		case "input_schema":
			t.InputSchema = value
		default:
			t.Extra = append(t.Extra, wire.Member{Key: key.(string), Value: value})
		}
	}
	return t, err
}

// hasOddKey reports a top level member that encoding/json takes for tools and decodeSpec does not, or that is
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
