package jsonrpc

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// members returns an object's members by their decoded names, as any parser does.
func membersOf(t *testing.T, object []byte) (names []string, values map[string][]json.RawMessage) {
	t.Helper()
	values = map[string][]json.RawMessage{}
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		t.Fatalf("%s is not an object: %v", object, err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			t.Fatalf("%s: %v", object, err)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("%s: %v", object, err)
		}
		names = append(names, key.(string))
		values[key.(string)] = append(values[key.(string)], v)
	}
	return names, values
}

// FuzzReply checks that any answer of a child is forwarded as valid JSON with the caller's id only, and with the bytes of
// the child's result unchanged.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"n":1.0}}`,
		`{"jsonrpc":"2.0","result":1}`,
		`{"jsonrpc":"2.0","id":1,"i\u0064":99,"result":1}`,
		`{"jsonrpc":"2.0","id":1,"result":1,"res\u0075lt":2}`,
		`{"jsonrpc":"2.0","id":1,"result":1,"result":2}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"m"}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"},"error":null,"result":3}`,
		`{"id":1,"error":"boom"}`,
		`{"id":1}`,
		` { "jsonrpc" : "2.0" , "id" : null , "result" : null } `,
	} {
		f.Add([]byte(seed), []byte(`"caller's"`))
	}
	f.Fuzz(func(t *testing.T, text, id []byte) {
		r, err := ParseReply(text)
		if err != nil || !ValidID(id) || !json.Valid(id) || len(bytes.TrimSpace(id)) < len(id) {
			return
		}
		result, rerr := r.Result()
		if (rerr == nil) != (r.ErrorCode() == 0) {
			if e, ok := rerr.(*rpc.Error); !ok || e.Code != 0 {
				t.Fatalf("Result returns %v, ErrorCode %d", rerr, r.ErrorCode())
			}
		}
		out := r.AppendTo([]byte("before"), id)
		out, ok := bytes.CutPrefix(out, []byte("before"))
		if !ok || !json.Valid(out) {
			t.Fatalf("%s is forwarded as %s", text, out)
		}
		if len(out) > r.Size()+len(id) {
			t.Fatalf("Size is %d, the message %d bytes: %s", r.Size(), len(out), out)
		}
		_, values := membersOf(t, out)
		if ids := values["id"]; len(ids) != 1 || !bytes.Equal(ids[0], id) {
			t.Fatalf("%s is forwarded with the ids %q, not %s: %s", text, ids, id, out)
		}
		if rerr == nil {
			if got := values["result"]; len(got) != 1 || !bytes.Equal(got[0], result) {
				t.Fatalf("%s has the result %s, and is forwarded as %s", text, result, out)
			}
			if e := values["error"]; len(e) > 0 && string(e[len(e)-1]) != "null" {
				t.Fatalf("%s has a result, and is forwarded with an error: %s", text, out)
			}
		} else if e := values["error"]; len(e) != 1 || string(e[0]) == "null" {
			t.Fatalf("%s is an error, and is forwarded as %s", text, out)
		}
	})
}

// FuzzSetMember checks that after SetMember every parser finds the value, and that everything else is unchanged.
func FuzzSetMember(f *testing.F) {
	for _, seed := range []string{
		`{"a":1}`, `{"_meta":1,"_meta":2}`, `{"_m\u0065ta":{"agent_id":"admin"}}`, ` { } `, ``, `[]`,
		`{"x":{"_meta":1},"\u005fmeta":7, "_meta" : [ 1 ] }`,
	} {
		f.Add([]byte(seed), "_meta")
	}
	f.Fuzz(func(t *testing.T, object []byte, name string) {
		if len(object) > 0 && !json.Valid(object) || string(bytes.ToValidUTF8([]byte(name), nil)) != name {
			return
		}
		value := []byte(`{"set":1.0}`)
		out, ok := SetMember(object, name, value)
		trimmed := bytes.TrimLeft(object, " \t\r\n")
		if isObject := len(trimmed) == 0 || trimmed[0] == '{'; ok != isObject {
			t.Fatalf("SetMember of %s: %v", object, ok)
		}
		if !ok {
			return
		}
		if _, err := Scan(out); err != nil && len(object) < 100 {
			t.Fatalf("%s became %s: %v", object, out, err)
		}
		_, values := membersOf(t, out)
		for _, v := range values[name] {
			if !bytes.Equal(v, value) {
				t.Fatalf("%s became %s, where %q is still %s", object, out, name, v)
			}
		}
		if len(values[name]) == 0 {
			t.Fatalf("%s became %s, without %q", object, out, name)
		}
		if at, ok := Member(out, name); !ok || !bytes.Equal(at.In(out), value) {
			t.Fatalf("Member does not find %q in %s", name, out)
		}
		if len(trimmed) == 0 {
			return
		}
		_, before := membersOf(t, object)
		for k, v := range before {
			if k == name {
				continue
			}
			if len(v) != len(values[k]) || !bytes.Equal(v[len(v)-1], values[k][len(v)-1]) {
				t.Fatalf("%s became %s, where %q is another", object, out, k)
			}
		}
	})
}

// FuzzMember checks Member against encoding/json, and that it returns for any text.
func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"a":1,"\u0061":2}`), "a")
	f.Add([]byte(`{"a"`), "a")
	f.Fuzz(func(t *testing.T, object []byte, name string) {
		at, ok := Member(object, name)
		trimmed := bytes.TrimLeft(object, " \t\r\n")
		if !json.Valid(object) || len(trimmed) == 0 || trimmed[0] != '{' {
			return
		}
		if _, err := Scan(object); err != nil {
			return
		}
		_, values := membersOf(t, object)
		v, want := values[name]
		if ok != want || ok && !bytes.Equal(at.In(object), v[len(v)-1]) {
			t.Fatalf("%q of %s: %q, %v", name, object, at.In(object), ok)
		}
	})
}
