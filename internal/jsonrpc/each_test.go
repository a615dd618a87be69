package jsonrpc

import (
	"fmt"
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
