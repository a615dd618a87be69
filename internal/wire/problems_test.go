package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestHandshakeDiagnostics reads the diagnostics of a bridge, which may contain text of its child: they are hostile.
func TestHandshakeDiagnostics(t *testing.T) {
	long := strings.Repeat("é", 2000)
	many := make([]Diagnostic, 50)
	for i := range many {
		many[i] = Diagnostic{"warn", "undeclared", fmt.Sprint(i)}
	}
	list, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ diagnostics, want string }{
		{`[{"level":"warn","code":"undeclared","message":"the tool x"}]`, "[{warn undeclared the tool x}]"},
		{`[{"level":"panic","code":"a","message":"b"}]`, "[{warn a b}]"},
		{`[{"code":"a"},{"message":"b"},{"code":"` + strings.Repeat("x", 65) + `","message":"b"}]`, "[]"},
		{`[{"code":"a","message":"` + long + `"}]`, "[{warn a " + long[:1024] + "}]"},
		{`"none"`, "[]"},
		{`[1]`, "[]"},
		{string(list), fmt.Sprint(many[:maxProblems])},
	} {
		h, err := ParseHandshake(json.RawMessage(`{"server_version":"1","tools":[],"diagnostics":` + tt.diagnostics + `}`))
		if err != nil || fmt.Sprint(h.Problems) != tt.want {
			t.Errorf("%.100s: %.200v, %v; want %.200s", tt.diagnostics, h.Problems, err, tt.want)
		}
	}
	h, err := ParseHandshake(json.RawMessage(`{"tools":[{"name":""}],"diagnostics":[{"code":"a","message":"b"}]}`))
	if err != nil || len(h.Problems) != 2 {
		t.Errorf("its own and ours: %v, %v", h.Problems, err)
	}
}
