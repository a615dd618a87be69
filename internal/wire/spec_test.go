package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func TestParseHandshake(t *testing.T) {
	h, err := ParseHandshake(json.RawMessage(`{
		"server_version": "1.2.3", "protocolVersion": "2025-06-18", "serverInfo": {"name": "x", "version": "9"},
		"instructions": "be kind", "hooks": ["b", {"name": "a"}, "b", 7],
		"tools": [
			{"name": "get", "description": "Gets <it>.", "input_schema": {"max": 1e400, "b": 1, "a": 2.50}, "annotations": {"readOnlyHint": true}},
			{"name": "mcp", "inputSchema": {"type": "object", "x": 1}, "title": "T", "_meta": {"k": 1}},
			{"name": "both", "input_schema": {"n": 1}, "inputSchema": {"m": 1}},
			{"name": "null", "input_schema": null, "inputSchema": null},
			{"name": "odd", "input_schema": true, "tool": "x", "description": 5},
			{"name": "get"}, {"description": "no name"}, 17, {"name": "bad\u0000name"}, {"name": 5}
		]}`))
	if err != nil {
		t.Fatal(err)
	}
	if h.ServerVersion != "1.2.3" || h.Protocol == "" || h.Server.Instructions != "be kind" || !slices.Equal(h.Hooks, []string{"a", "b"}) {
		t.Errorf("%+v", h)
	}
	var got []string
	for _, tool := range h.Tools {
		data, err := json.Marshal(tool)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(data))
	}
	want := []string{
		`{"name":"","tool":"get","description":"Gets \u003cit\u003e.","input_schema":{"max":1e400,"b":1,"a":2.50},"annotations":{"readOnlyHint":true}}`,
		`{"name":"","tool":"mcp","description":"","input_schema":{"type":"object","x":1},"title":"T","_meta":{"k":1}}`,
		`{"name":"","tool":"both","description":"","input_schema":{"n":1}}`,
		`{"name":"","tool":"null","description":"","input_schema":{"type":"object"}}`,
		`{"name":"","tool":"odd","description":"","input_schema":{"type":"object"}}`,
	}
	for n := range want {
		if n >= len(got) || got[n] != want[n] {
			t.Errorf("tool %d:\n%s\nwant\n%s", n, got[min(n, len(got)-1)], want[n])
		}
	}
	if len(got) != len(want) || len(h.Problems) != 9 { // a hook, five tools, three remarks on odd
		t.Errorf("%d tools, problems: %+v", len(got), h.Problems)
	}
}

func TestParseHandshakeDialects(t *testing.T) {
	for _, c := range []struct {
		result, version, fault string
	}{
		{`{"server_version":"1.0.0","tools":[],"hooks":[]}`, "1.0.0", ""},
		{`{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"version":"2.0.0"}}`, "2.0.0", ""},
		{`{}`, "", ""},
		{`{"tools":null}`, "", ""},
		{`[]`, "", "not an object"},
		{``, "", "not an object"},
		{`{"tools":{}}`, "", "list of tools"},
		{`{"tools":[` + strings.Repeat(`{},`, MaxTools) + `{}]}`, "", "over the limit"},
	} {
		h, err := ParseHandshake(json.RawMessage(c.result))
		switch {
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%.60s: %v, want %q", c.result, err, c.fault)
		case c.fault == "" && (err != nil || h.ServerVersion != c.version):
			t.Errorf("%.60s: %+v, %v", c.result, h, err)
		}
	}
}

func TestParseToolsOfNothing(t *testing.T) {
	if _, _, err := ParseTools(nil); err == nil || !strings.Contains(err.Error(), `no "tools"`) {
		t.Errorf("no list at all: %v", err)
	}
}

// TestHandshakeHash: order and white space make no difference, literals and everything else do.
func TestHandshakeHash(t *testing.T) {
	hash := func(result string) string {
		h, err := ParseHandshake(json.RawMessage(result))
		if err != nil {
			t.Fatal(err)
		}
		sum, err := HandshakeHash(h.Tools, h.Hooks)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	// printf '{"hooks":["h"],"tools":[{"description":"<a>","input_schema":{"a":1.0,"b":2},"name":"x","title":"T"}]}' | sha256sum
	const want = "3b8778d96b39d911d148e739bc20ba56e7794fe33b682f27cf817c905391839b"
	base := hash(`{"tools":[{"name":"x","description":"<a>","input_schema":{"b":2,"a":1.0},"title":"T"}],"hooks":["h"]}`)
	if base != want {
		t.Errorf("hash %s, want %s", base, want)
	}
	for _, same := range []string{
		`{"hooks":["h"],"tools":[ { "title":"T", "input_schema":{"a":1.0,"b":2}, "description":"\u003ca>","name":"x"}]}`,
		`{"hooks":["h","h"],"tools":[{"name":"x","description":"<a>","inputSchema":{"b":2,"a":1.0},"title":"T"}],"server_version":"9"}`,
	} {
		if hash(same) != base {
			t.Errorf("another hash for %s", same)
		}
	}
	for _, other := range []string{
		`{"hooks":["h"],"tools":[{"name":"x","description":"<a>","input_schema":{"b":2,"a":1},"title":"T"}]}`,
		`{"hooks":["h"],"tools":[{"name":"x","description":"<a>","input_schema":{"b":2,"a":1.0}}]}`,
		`{"hooks":[],"tools":[{"name":"x","description":"<a>","input_schema":{"b":2,"a":1.0},"title":"T"}]}`,
		`{"hooks":["h"],"tools":[]}`,
	} {
		if hash(other) == base {
			t.Errorf("the same hash for %s", other)
		}
	}
	two := []Tool{{Own: "b", InputSchema: EmptySchema}, {Own: "a", InputSchema: EmptySchema}}
	one, err := HandshakeHash(two, []string{"y", "x"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(two)
	if again, _ := HandshakeHash(two, []string{"x", "y"}); again != one {
		t.Error("the order of tools or hooks makes a difference")
	}
}

func ExampleNames() {
	var n Names
	n.Set("weather", []string{"get"})
	fmt.Println(n.Name(ToolKey{"weather", "get"}))

	// google.gmail/send and google_gmail/send have the same bare name: both get a suffix.
	n.Set("google.gmail", []string{"send"})
	n.Set("google_gmail", []string{"send"})
	for _, t := range n.Lookup("ext_google_gmail_send") {
		fmt.Println(t.ToolKey, t.Name)
	}
	fmt.Println(NearestKeys(n.Keys(), "ext_wether_get"))
	// Output:
	// ext_weather_get
	// google.gmail/send ext_google_gmail_send_e05434
	// google_gmail/send ext_google_gmail_send_935ffe
	// [weather/get]
}

// FuzzParseHandshake: what is parsed stays within its bounds and can be written, read again and hashed.
func FuzzParseHandshake(f *testing.F) {
	f.Add([]byte(`{"server_version":"1","tools":[{"name":"a","input_schema":{"type":"object"},"x":[1e9]}],"hooks":["h"]}`))
	f.Add([]byte(`{"tools":[{"name":"a"},{"name":"a"},{"inputSchema":[]},null]}`))
	f.Add([]byte("{\"tools\":[{\"name\":\"<\u00e4>\",\"input_schema\":{ \"a\":\t[1,\r\n2] },\"x\":\"\u2028\"},{\"name\":\"b\"}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ParseHandshake(data)
		if err != nil {
			return
		}
		for _, tool := range h.Tools {
			out, err := json.Marshal(tool)
			if err != nil {
				t.Fatal(err)
			}
			var back Tool
			if err := json.Unmarshal(out, &back); err != nil || back.Own != tool.Own {
				t.Fatalf("%s: %v", out, err)
			}
		}
		if _, err := HandshakeHash(h.Tools, h.Hooks); err != nil {
			t.Fatal(err)
		}
		spec := Spec{ID: "x", Tools: h.Tools, Hooks: h.Hooks, Server: h.Server}
		line, err := EncodeSpec(&spec)
		want, wantErr := plainjson.Marshal(&spec)
		var got bytes.Buffer
		if err != nil || wantErr != nil || json.Compact(&got, line) != nil || got.String() != string(want) || bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("%s, %v; want %s, %v", line, err, want, wantErr)
		}
	})
}

// FuzzToolName: a registered name is legal, whatever the tool is called, and finds the tool again.
func FuzzToolName(f *testing.F) {
	f.Add("weather", "get.now")
	f.Add("google.gmail", strings.Repeat("é", 100))
	f.Fuzz(func(t *testing.T, id, tool string) {
		k := ToolKey{id, tool}
		var n Names
		n.Set(id, []string{tool})
		if name := n.Name(k); !legalName.MatchString(name) {
			t.Errorf("%q", name)
		}
		for _, form := range []string{n.Name(k), SuffixedName(id, tool, 6)} {
			if got := n.Lookup(form); len(got) != 1 || got[0].ToolKey != k {
				t.Errorf("Lookup(%q) = %v", form, got)
			}
		}
	})
}

// TestServerBounds: what an MCP server declares is kept only within its bounds.
func TestServerBounds(t *testing.T) {
	long := strings.Repeat("é", maxInstructions)
	h, err := ParseHandshake(json.RawMessage(`{"protocolVersion":"` + strings.Repeat("9", 100) + `","serverInfo":{"name":5,"version":"1"},"capabilities":[1],"instructions":"` + long + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	s := h.Server
	if len(s.ProtocolVersion) != maxServerVersion || s.Capabilities != nil || len(s.Instructions) > maxInstructions+2 || !utf8.ValidString(s.Instructions) ||
		!strings.HasSuffix(s.Instructions, "…") || s.Name() != "" || s.Version() != "1" || s.Offers("tools") {
		t.Errorf("%+v", s)
	}
	for capabilities, want := range map[string]bool{`{"tools":{}}`: true, `{"tools":null}`: false, `{}`: false, `{"prompts":{"tools":{}}}`: false} {
		if s := (&Server{Capabilities: json.RawMessage(capabilities)}); s.Offers("tools") != want {
			t.Errorf("%s offers tools: %t", capabilities, !want)
		}
	}
	h, err = ParseHandshake(json.RawMessage(`{"protocolVersion":"1","serverInfo":{"x":"` + long + `"},"instructions":{}}`))
	if err != nil || h.Server.Info != nil || h.Server.Instructions != "" {
		t.Errorf("%+v, %v", h.Server, err)
	}
	if h, _ := ParseHandshake(json.RawMessage(`{"serverInfo":{"version":"1"}}`)); h.Server != nil {
		t.Errorf("a native extension has %+v", h.Server)
	}
}

// TestElements: of a long array only the beginning is decoded.
func TestElements(t *testing.T) {
	for in, want := range map[string]int{"": 0, "null": 0, "[]": 0, " [1, [2], {}]": 3, "[1,1,1,1,1,1]": 4} {
		if got, err := elements(json.RawMessage(in), 3); err != nil || len(got) != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	if got, err := elements(json.RawMessage(`{"a":1}`), 3); err == nil {
		t.Errorf("an object: %s", got)
	}
	long := json.RawMessage(`{"server_version":"1","hooks":[` + strings.Repeat("1,", 1_000_000) + `1],"diagnostics":[` + strings.Repeat("{},", 1_000_000) + `{}]}`)
	if h, err := ParseHandshake(long); err != nil || len(h.Problems) > maxProblems {
		t.Errorf("%d problems, %v", len(h.Problems), err)
	}
}

func TestIsReturning(t *testing.T) {
	of := func(states ...heartbeat.State) *StateDoc {
		d := &StateDoc{State: states[0]}
		for _, s := range states {
			d.Instances = append(d.Instances, InstanceState{State: s})
		}
		return d
	}
	for _, tt := range []struct {
		d    *StateDoc
		want bool
	}{
		{of(heartbeat.Restarting), true}, {of(heartbeat.Spawning), true}, {of(heartbeat.Ready, heartbeat.Restarting), false},
		{of(heartbeat.Draining), false}, {of(heartbeat.Draining, heartbeat.Restarting), true}, {of(heartbeat.Draining, heartbeat.Lost), false},
		{of(heartbeat.Lost), false},
	} {
		if got := IsReturning(tt.d); got != tt.want {
			t.Errorf("%+v: %v", tt.d, got)
		}
	}
}
