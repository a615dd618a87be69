package toolargs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func FuzzPairs(f *testing.F) {
	schema := Properties(json.RawMessage(`{"properties":{"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
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
		if got := Properties(json.RawMessage(schema)); len(got) != want {
			t.Errorf("%s: %v, want %d", schema, got, want)
		}
	}
}

// TestMembers: the member of an object is not an argument, unless the schema has an argument with this name.
func TestMembers(t *testing.T) {
	known := Properties(json.RawMessage(`{"properties":{"address":{"type":"object"},"a.b":{"type":"integer"},"a":{"type":"object"}}}`))
	for arg, want := range map[string]string{"address.city=Ghent": `address:='{"city":…}'`, "address.geo.lat=1": `address:='{"geo":{"lat":…}}'`} {
		if _, err := pairs([]string{arg}, known); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	for _, arg := range []string{"a.b=1", "x.y=1"} {
		if _, err := pairs([]string{arg}, known); err != nil {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// TestReferences: the type of an argument may be in another part of the schema.
func TestReferences(t *testing.T) {
	schema := json.RawMessage(`{"$defs":{"o":{"type":"object"},"n":{"enum":[1,2],"type":"integer"},"r":{"$ref":"#/$defs/r"}},"properties":{
		"ref":{"$ref":"#/$defs/o"},"maybe":{"anyOf":[{"$ref":"#/$defs/o"},{"type":"null"}]},"all":{"allOf":[{"$ref":"#/$defs/n"}],"default":1},
		"loop":{"$ref":"#/$defs/r"},"missing":{"$ref":"#/$defs/x"},"odd":{"anyOf":[{"$ref":"#/$defs/x"},{"type":"null"}]}}}`)
	for arg, want := range map[string]string{
		`ref={"a":1}`: `{"ref":{"a":1}}`, "maybe={}": `{"maybe":{}}`, "maybe=null": `{"maybe":null}`, "all=2": `{"all":2}`,
		"loop=1": `{"loop":"1"}`, "missing=1": `{"missing":"1"}`, "odd=1": `{"odd":"1"}`,
	} {
		if got, err := Parse([]string{arg}, schema, nil); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", arg, got, err, want)
		}
	}
	for root, want := range map[string]string{
		`{"$ref":"#/$defs/A","$defs":{"A":{"properties":{"n":{"type":"integer"}},"required":["n"]}}}`:                    `{"n":5}`,
		`{"properties":{"n":{"$ref":"#/properties/m/anyOf/1"},"m":{"anyOf":[true,{"type":"integer"}]}}}`:                 `{"n":5}`,
		`{"properties":{"n":{"$ref":"#/properties/m/anyOf/7"},"m":{"anyOf":[true,{"type":"integer"}]}}}`:                 `{"n":"5"}`,
		`{"properties":{"n":{"$ref":"#/$defs/A%3CB%3E"}},"$defs":{"A<B>":{"type":"integer"}}}`:                           `{"n":5}`,
		`{"properties":{"n":{"$ref":"#/$defs%2FA%2FB"}},"$defs":{"A/B":{"type":"string"},"A":{"B":{"type":"integer"}}}}`: `{"n":5}`,
		`{"properties":{"n":{"$ref":"#/$defs/A%3"}},"$defs":{"A%3":{"type":"integer"}}}`:                                 `{"n":"5"}`,
	} {
		if got, err := Parse([]string{"n=5"}, json.RawMessage(root), nil); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", root, got, err, want)
		}
	}
	if c := Properties(schema)[2].Choices(); !slices.Equal(c, []string{"all=1", "all=2"}) {
		t.Errorf("choices: %q", c)
	}
}

// TestDescribeHostile: what is read of a schema is limited, also if each reference leads to twelve others.
func TestDescribeHostile(t *testing.T) {
	branches := strings.TrimSuffix(strings.Repeat(`{"$ref":"#/$defs/a"},`, 12), ",")
	var properties strings.Builder
	for i := range 300 {
		fmt.Fprintf(&properties, `"p%d":{"$ref":"#/$defs/a"},`, i)
	}
	schema := `{"type":"object","properties":{` + strings.TrimSuffix(properties.String(), ",") + `},"$defs":{"a":{"anyOf":[` + branches + `],"description":"` + strings.Repeat("x", 100_000) + `"}}}`
	v := viewer{root: json.RawMessage(schema), refs: map[string]json.RawMessage{}}
	v.object("", v.root, 0)
	if v.read < maxRead || len(v.rows) != maxDescribed {
		t.Errorf("%d bytes read, %d rows", v.read, len(v.rows))
	}
}

func TestDescribe(t *testing.T) {
	const schema = `{"type":"object","required":["city","below"],"$defs":{"point":{"type":"object","description":"Where","properties":{"lat":{"type":"number"}},"required":["lat"]}},
"properties":{"city":{"type":"string","description":"Which\nmore"},"below":{"type":"integer","minimum":2,"maximum":9},"unit":{"enum":["metric","imperial"],"default":"metric"},
"v":{"const":2},"any":{},"tags":{"type":"array","items":{"type":["string","null"]}},"at":{"$ref":"#/$defs/point"},"either":{"anyOf":[{"type":"string"},{"type":"integer","minimum":0}]},
"when":{"type":"string","format":"date"},"loop":{"$ref":"#/properties/loop"},"odd":7}}`
	var have []string
	for _, r := range Describe(json.RawMessage(schema)) {
		required := ""
		if r.Required {
			required = "!"
		}
		have = append(have, strings.Join([]string{r.Name + required, r.Type, r.Default, r.Description}, "|"))
	}
	want := []string{"city!|string||Which", "below!|integer from 2 to 9||", `unit|"metric" or "imperial"|"metric"|`, "v|2||", "any|any||", "tags|array of string or null||",
		"at|object||Where", "at.lat!|number||", "either|string or integer from 0||", "when|string (date)||", "loop|any||", "odd|any||"}
	if !slices.Equal(have, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	if rows := Describe(json.RawMessage(`{"properties":[1]}`)); rows != nil {
		t.Errorf("%v", rows)
	}
}

// TestAlternatives: a value of a type that one of the alternatives has is not sent as a string.
func TestAlternatives(t *testing.T) {
	schema := Properties(json.RawMessage(`{"properties":{
		"limit":{"anyOf":[{"type":"integer"},{"type":"null"}]}, "name":{"anyOf":[{"type":"string"},{"type":"null"}]},
		"on":{"oneOf":[{"type":"boolean"}]}, "any":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/x"}]}}}`))
	got, err := pairs([]string{"limit=5", "name=7", "on=true", "any=8"}, schema)
	if want := `{"limit":5,"name":"7","on":true,"any":"8"}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

// TestTextOfArguments: what is not UTF-8 is refused, not changed, and a byte order mark is no part of JSON.
func TestTextOfArguments(t *testing.T) {
	schema := json.RawMessage(`{"type":"object"}`)
	if got, err := Parse([]string{"path=caf\xe9.txt"}, schema, nil); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := Parse([]string{"-"}, schema, strings.NewReader("\ufeff{\"a\":1}\r\n")); err != nil || string(got) != `{"a":1}` {
		t.Errorf("%s, %v", got, err)
	}
}
