package mcp

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

func TestNegotiate(t *testing.T) {
	for requested, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		Modern: LatestLegacy, "": LatestLegacy, "2099-01-01": LatestLegacy,
	} {
		if got := Negotiate(requested); got != want {
			t.Errorf("%q: %s, want %s", requested, got, want)
		}
	}
}

func TestParseParams(t *testing.T) {
	p, e := ParseParams([]byte(`{"name":"n\u0061me","arguments":{"a":1.0},"cursor":"c","_meta":{"progressToken":"t","io.modelcontextprotocol/clientInfo":{"name":"x"},
		"v/x":1e400,"traceparent":"00-1","v\u002fy":{"a":[]}}}`))
	if e != nil {
		t.Fatal(e)
	}
	if name, e := p.ToolName(); e != nil || name != "name" {
		t.Errorf("the name is %q, %v", name, e)
	}
	if args, e := p.ToolArguments(); e != nil || string(args) != `{"a":1.0}` {
		t.Errorf("the arguments are %s, %v", args, e)
	}
	if got := string(p.Meta.ForExtension()); got != `{"v/x":1e400,"traceparent":"00-1","v\u002fy":{"a":[]}}` {
		t.Errorf("passed on is %s", got)
	}
	if string(p.Meta.ProgressToken) != `"t"` || p.Meta.Trace() != "00-1" || ClientName(p.Meta.ClientInfo) != "x" {
		t.Errorf("%+v", p.Meta)
	}
	for params, want := range map[string]string{"": "", "null": "", "{}": "", `{"_meta":null}`: "", "[]": "object", "7": "object", `{"_meta":[]}`: "_meta"} {
		p, e := ParseParams([]byte(params))
		if (e != nil) != (want != "") || e != nil && !strings.Contains(e.Message, want) || p.Meta.ForExtension() != nil {
			t.Errorf("%s: %v", params, e)
		}
	}
}

func TestComplete(t *testing.T) {
	for result, want := range map[string]string{
		`{}`: `{"resultType":"complete"}`, ` { "a":1}`: ` {"resultType":"complete","a":1}`, `{"resultType":"task"}`: `{"resultType":"complete"}`, `{"resultType":"complete" }`: `{"resultType":"complete" }`,
		`{"a":{"resultType":1}}`: `{"resultType":"complete","a":{"resultType":1}}`, `[]`: `[]`, ``: ``,
		`"{\"a\":1}"`: `"{\"a\":1}"`, `[{}]`: `[{}]`,
	} {
		if got := string(EraModern.Complete([]byte(result))); got != want {
			t.Errorf("%s: %s, want %s", result, got, want)
		}
		if got := string(EraLegacy.Complete([]byte(result))); got != result {
			t.Errorf("legacy: %s becomes %s", result, got)
		}
	}
}

// FuzzParams reads parameters of clients: no input panics, and what is passed on is valid JSON without the members that
// belong to the connection.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"name":"x","arguments":{},"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","v/x":1}}`))
	f.Add([]byte(`{"_meta":{"":{},"\u0070rogressToken":7,"a":"\ud800"}}`))
	f.Fuzz(func(t *testing.T, params []byte) {
		if !utf8.Valid(params) || !json.Valid(params) {
			return // refused before
		}
		p, e := ParseParams(params)
		if e != nil {
			return
		}
		_, _ = Classify(MethodListTools, &p.Meta)
		_, _ = p.ToolName()
		_, _ = p.ToolArguments()
		_ = ClientName(p.Meta.ClientInfo)
		passed := p.Meta.ForExtension()
		if passed == nil {
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(passed, &members); err != nil {
			t.Fatalf("%s passes on %s: %v", params, passed, err)
		}
		for name := range members {
			if name == "progressToken" || strings.HasPrefix(name, metaPrefix) {
				t.Fatalf("%s passes on %s", params, passed)
			}
		}
	})
}

// FuzzSchema repairs input schemas: what is listed is an object whose type is object.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{`{}`, `{"type":["object"]}`, `{"type":"object","type":"string"}`, `{"\u0074ype":7}`, `true`, ` {"a":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, schema []byte) {
		if _, err := jsonrpc.Scan(schema); err != nil || !utf8.Valid(schema) {
			return
		}
		fit, _, ok := FitInputSchema(schema)
		if !ok {
			return
		}
		var s struct {
			Type json.RawMessage `json:"type"`
		}
		at, found := jsonrpc.Member(fit, "type")
		if err := json.Unmarshal(fit, &s); err != nil || !found || string(at.In(fit)) != `"object"` && !strings.Contains(string(at.In(fit)), `\`) {
			t.Fatalf("%s becomes %s: %v", schema, fit, err)
		}
		_ = CheckHeaders(http.Header{}, MethodCallTool, &Params{Arguments: []byte(`{"a":{"b":1}}`)}, fit)
	})
}

// FuzzHeaderValue decodes header values.
func FuzzHeaderValue(f *testing.F) {
	f.Add("=?base64?w6k=?=", "é")
	f.Add("7", "7.0")
	f.Fuzz(func(t *testing.T, header, value string) {
		if text, ok := headerValue(header); ok && strings.HasPrefix(header, "=?base64?") && strings.HasSuffix(header, "?=") && len(header) >= 11 && !utf8.ValidString(text) {
			t.Fatalf("%q becomes %q", header, text)
		}
		if value != "" {
			sameNumber(header, []byte(value))
		}
	})
}
