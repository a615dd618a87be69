package plainyaml

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestYAML: -o yaml has the values of --json, for another implementation of YAML, and looks as people write it.
func TestYAML(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`{"a":1,"list":[{"id":"x","m":[[],[1,2]]},{}],"none":null,"e":{}}`, "a: 1\nlist:\n  - id: x\n    m:\n      - []\n      - - 1\n        - 2\n  - {}\nnone: null\ne: {}\n"},
		{`{"s":["","yes","No","null","~","1","1e3","0x1f","2026-01-02","a: b","- x","#","a #b","\u001b[31m","😀","tab\t","new\nline","'","\"","\\","é","\u0085\u2028","!t","&a","*a","{","x y ","ext_a.b/c-d","=","<<","\u0000\u007f"]}`, ""},
		{`{"yes":true,"a b":false,"":{"1":"x"},"big":9007199254740993,"f":-1.5e-7}`, ""},
		{`{}`, " {}\n"},
	} {
		out, err := FromJSON([]byte(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
		}
		if tt.want != "" && string(out) != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.in, string(out), tt.want)
		}
		var got, want any
		if err := yaml.Unmarshal(out, &got); err != nil {
			t.Errorf("%s: %v in\n%s", tt.in, err, string(out))
		}
		text, err := json.Marshal(got)
		if err != nil || json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(tt.in), &want) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s from\n%s", tt.in, text, string(out))
		}
	}
}
