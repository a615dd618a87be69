package jsonrpc

import "testing"

func TestMember(t *testing.T) {
	for _, tt := range []struct{ object, name, want string }{
		{`{"a":1,"b":{"a":2}}`, "a", "1"},
		{` { "b" : [ {"a":3} ] , "a" : "x,\"a\":9" } `, "a", `"x,\"a\":9"`},
		{`{"a":1,"a":1.0}`, "a", "1.0"},
		{`{"A":1}`, "a", ""},
		{`{"a":1,"\u0061":2}`, "a", "2"},
		{`{}`, "a", ""},
		{`[{"a":1}]`, "a", ""},
		{``, "a", ""},
		{`{"a"`, "a", ""},
		{`{"a":`, "a", ""},
	} {
		at, ok := Member([]byte(tt.object), tt.name)
		if ok != (tt.want != "") || string(at.In([]byte(tt.object))) != tt.want {
			t.Errorf("%s of %s = %q, %v, want %q", tt.name, tt.object, at.In([]byte(tt.object)), ok, tt.want)
		}
	}
}

func TestSetMember(t *testing.T) {
	for _, tt := range []struct{ object, want string }{
		{`{"a": 1.0, "x":1e400}`, `{"a": "new", "x":1e400}`},
		{`{"a": 1.0, "x" : 1e400, "A":0}`, `{"x" : 1e400,"A":0,"a":"new"}`},
		{`{"x":1e400 }`, `{"x":1e400,"a":"new" }`},
		{`{"x":1, "a": 2 }`, `{"x":1, "a": "new" }`},
		{`{"a":1,"x":2,"\u0061":3,"A":4}`, `{"x":2,"A":4,"a":"new"}`},
		{`{}`, `{"a":"new"}`},
		{` { } `, ` {"a":"new" } `},
		{``, `{"a":"new"}`},
		{`[1]`, ``},
		{`7`, ``},
	} {
		got, ok := SetMember([]byte(tt.object), "a", []byte(`"new"`))
		if string(got) != tt.want || ok != (tt.want != "") {
			t.Errorf("%s → %s, %v, want %s", tt.object, got, ok, tt.want)
		}
	}
}

func TestParseReplyWithoutID(t *testing.T) {
	r, err := ParseReply([]byte(`{"jsonrpc":"2.0","result":{"n":1.0}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(r.AppendTo(nil, []byte("7"))), `{"jsonrpc":"2.0","id":7,"result":{"n":1.0}}`; got != want {
		t.Errorf("= %s, want %s", got, want)
	}
}
