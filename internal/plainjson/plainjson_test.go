package plainjson_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/extmesh/extmesh/internal/plainjson"
)

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "greet", "<a & b>", `say "hi" \ `, "größe", "a\nb\x00", "\u2028", "\xff", "\x7f"} {
		got := plainjson.AppendString([]byte("x"), s)
		var back string
		if err := json.Unmarshal(got[1:], &back); err != nil || got[0] != 'x' {
			t.Errorf("%q becomes %s: %v", s, got, err)
		}
		if want := string([]rune(s)); back != want { // invalid UTF-8 is replaced
			t.Errorf("%q comes back as %q", s, back)
		}
	}
}

func Example() {
	text, err := plainjson.Marshal(map[string]any{"html": "<b>", "raw": json.RawMessage(`1e400`)})
	fmt.Println(string(text), err)
	fmt.Println(string(plainjson.AppendString(nil, "a < b")))
	// Output:
	// {"html":"<b>","raw":1e400} <nil>
	// "a < b"
}
