package wire

import "testing"

func TestAppendCallParams(t *testing.T) {
	for _, tt := range []struct{ tool, args, want string }{
		{"say", `{"n":1.0}`, `x{"name":"say","arguments":{"n":1.0}}`},
		{"say", "", `x{"name":"say","arguments":{}}`},
		{`a"b\é`, "{ }", `x{"name":"a\"b\\é","arguments":{ }}`},
	} {
		got := AppendCallParams([]byte("x"), tt.tool, []byte(tt.args))
		if string(got) != tt.want {
			t.Errorf("%s with %s: %s, want %s", tt.tool, tt.args, got, tt.want)
		}
		if name, _, err := CallParams(got[1:]); err != nil || name != tt.tool {
			t.Errorf("%s: taken apart it is %q, %v", got, name, err)
		}
	}
}
