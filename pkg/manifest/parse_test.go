package manifest

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/nearest"
)

// everyKey is a manifest with all keys, except the keys of other transports.
const everyKey = `
[plugin]
id = "google"
version = "1.2.3"
name = "Google"
description = "Mail and files"
min_agent_version = "0.9.0"
priority = -7

[capabilities]
tools = ["search", "Fetch.v2"]
hooks = ["before_message"]
channels = ["gmail"]
providers = ["drive"]

[transport]
kind = "stdio"
command = "./run"
args = ["--fast", ""]
env = { MODE = "${MODE:-x}" }
dialect = "mcp"
handshake_timeout = "1m30s"

[requires]
bins = ["git"]
env = ["GOOGLE_TOKEN"]

[context]
passthrough = true

[meta]
author = "A. Nother"
license = "MIT"

[mcp_servers.gmail]
type = "stdio"
command = "npx"
args = ["-y", "${PKG}"]
env = { TOKEN = "${GMAIL_TOKEN}" }
cwd = "sub"

[mcp_servers.drive]
transport = "streamable_http"
url = "https://drive.example/mcp?key=${KEY}"
headers = { Authorization = "Bearer ${TOKEN}" }
`

func TestParseValues(t *testing.T) {
	got, diags := Parse("plugin.toml", []byte(everyKey), Options{AgentVersion: "1.0.0"})
	if len(diags) > 0 {
		t.Fatalf("diagnostics:\n%s", lines(diags))
	}
	want := &Manifest{
		Plugin: Plugin{
			ID: "google", Version: "1.2.3", Name: "Google", Description: "Mail and files",
			MinAgentVersion: "0.9.0", Priority: -7,
		},
		Capabilities: Capabilities{
			Tools: []string{"search", "Fetch.v2"}, Hooks: []string{"before_message"},
			Channels: []string{"gmail"}, Providers: []string{"drive"},
		},
		Transport: Transport{
			Type: Stdio, Command: "./run", Args: []string{"--fast", ""}, Env: map[string]string{"MODE": "${MODE:-x}"},
			Dialect: MCP, HandshakeTimeout: 90 * time.Second,
		},
		Requires: Requires{Bins: []string{"git"}, Env: []string{"GOOGLE_TOKEN"}},
		Context:  Context{Passthrough: true},
		Meta:     Meta{Author: "A. Nother", License: "MIT"},
		MCPServers: map[string]Transport{
			"gmail": {
				Type: Stdio, Command: "npx", Args: []string{"-y", "${PKG}"},
				Env: map[string]string{"TOKEN": "${GMAIL_TOKEN}"}, Cwd: "sub",
			},
			"drive": {
				Type: HTTP, URL: "https://drive.example/mcp?key=${KEY}",
				Headers: map[string]string{"Authorization": "Bearer ${TOKEN}"},
			},
		},
		Hash: hash([]byte(everyKey)),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestParseDefaults(t *testing.T) {
	const head = "[plugin]\nid = \"w\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"a\"]\n[transport]\n"
	tests := []struct {
		name, transport string
		want            Transport
	}{
		{"stdio", `type = "stdio"` + "\n" + `command = "x"`, Transport{Type: Stdio, Command: "x", Dialect: Auto}},
		{"http", `type = "http"` + "\n" + `url = "http://h"`, Transport{Type: HTTP, URL: "http://h", Dialect: Auto}},
		{"nats", `type = "nats"`, Transport{Type: NATS}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, diags := Parse("plugin.toml", []byte(head+tt.transport), Options{})
			if m == nil {
				t.Fatal(lines(diags))
			}
			if !reflect.DeepEqual(m.Transport, tt.want) {
				t.Errorf("got %+v, want %+v", m.Transport, tt.want)
			}
		})
	}
}

func TestParseBytes(t *testing.T) {
	const small = "[plugin]\nid = \"w\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"a\"]\n[transport]\ntype = \"nats\"\n"
	atLimit := small + "#" + strings.Repeat("x", MaxFile-len(small)-1)
	tests := []struct{ name, data, want string }{
		{"at the limit", atLimit, ""},
		{"over the limit", atLimit + "x", "p: error: the file has more than 1048576 bytes (1 MiB)\n"},
		{"byte order mark", "\xef\xbb\xbf" + small, ""},
		{"fault after a byte order mark", "\xef\xbb\xbfx y\n", "p:1:3: error: syntax: expected '.' or '=', but got 'y' instead\n"},
		{"CRLF", strings.ReplaceAll(small, "\n", "\r\n"), ""},
		{"UTF-16", "\xff\xfe[\x00p\x00", "p:1:1: error: the file is not UTF-8; save it as UTF-8\n"},
		{"Latin-1", "# a\n# \xfc\n", "p:2:3: error: the file is not UTF-8; save it as UTF-8\n"},
		{"a real U+FFFD before it", "# \uFFFD\n# \xfc\n", "p:2:3: error: the file is not UTF-8; save it as UTF-8\n"},
		{"NUL", "\x00", "p:1:1: error: syntax: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, diags := Parse("p", []byte(tt.data), Options{})
			if got := lines(diags); got != tt.want || (m == nil) != (tt.want != "") {
				t.Errorf("got manifest: %v and\n%swant\n%s", m != nil, got, tt.want)
			}
		})
	}
}

// TestParseManyFaults checks the limit on diagnostics of one file.
func TestParseManyFaults(t *testing.T) {
	var b bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&b, "k%d=1\n", i)
	}
	_, diags := Parse("p", b.Bytes(), Options{})
	last := diags[len(diags)-1]
	if len(diags) != document.MaxFindings+1 || last.Message != "and 1502 more faults" { // plugin and transport are missing too
		t.Errorf("%d diagnostics, the last %v", len(diags), last)
	}
}

// TestParseHostile parses files that would take a decoder minutes, gigabytes or the whole stack; the limits prevent
// that.
func TestParseHostile(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, MaxFile/8/len(s)) }
	keys := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < MaxFile/2; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	tests := []struct {
		name, toml string
		want       error
	}{
		{"dotted key", fill("a.") + "a = 1", document.ErrDeep},
		{"arrays", "a = " + fill("["), document.ErrDeep},
		{"tables", "a = " + fill("{a="), document.ErrDeep},
		{"header", "[" + fill("a.") + "a]", document.ErrDeep},
		{"key", fill("a") + " = 1", document.ErrLong},
		{"long table of many keys", "[" + strings.Repeat("a", MaxFile/4) + "]\n" + keys("k%d=1\n"), document.ErrLong},
		{"many keys", keys("k%d=1\n"), document.ErrMany},
		{"many tables", keys("[k%d]\n"), document.ErrMany},
		{"many keys in arrays", "a = [" + keys("{k%d=1},"), document.ErrMany},
		{"many elements", "a = [" + fill("1,") + "]", nil},
		{"many strings", "[capabilities]\ntools = [" + fill("'',") + "]", nil},
		{"long string", "a = '" + fill("x") + "'", nil},
		{"long strings", "plugin = {id = '" + strings.Repeat("x", MaxFile/4) + "', version = '" + strings.Repeat("1.", MaxFile/4) + "'}", nil},
		{"placeholders", "transport = {type = 'http', url = '" + fill("${A}") + "'}", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, diags := Parse("p", []byte(tt.toml), Options{})
			if m != nil || len(diags) == 0 || tt.want != nil && (len(diags) != 1 || diags[0].Message != tt.want.Error()) {
				t.Errorf("got %d diagnostics, first %v; want %v", len(diags), diags[0], tt.want)
			}
			for _, d := range diags {
				if len(d.String()) > 2048 {
					t.Fatalf("a diagnostic of %d bytes", len(d.String()))
				}
			}
		})
	}
	for name, text := range map[string]string{
		"nesting": `{"mcpServers":` + fill("["), "keys": "{" + keys(`"k%d":1,`) + `"a":1}`,
		"long": `{"` + strings.Repeat("a", MaxFile/4) + `":{` + keys(`"k%d":1,`) + `"a":1}}`, "elements": `{"mcpServers":{"a":{"args":[` + fill("1,") + "1]}}}",
	} {
		if m, diags := ParseSidecar("dir", "p", []byte(text), Options{}); m != nil || len(diags) == 0 {
			t.Errorf("sidecar, %s: %+v, %d diagnostics", name, m, len(diags))
		}
	}
	front := func(s string) string { return "---\n" + strings.Repeat(s, maxFrontMatter/2/len(s)) + "\n---\n" }
	for _, s := range []string{"[", "{a: ", "- ", "a:\n ", "&a ", "? ", "!!a ", "|\n", "a: b\n", "'", "*a", "<<: "} {
		ParseSkill("p", []byte(front(s))) // it must only return
	}
}

func TestHash(t *testing.T) {
	const container = "[plugin]\nid = \"w\"\nversion = \"1.0.0\"\n"
	sidecar := func(s string) Options { return Options{Sidecar: &Sidecar{Path: ".mcp.json", Data: []byte(s)}} }
	parse := func(toml string, opt Options) string {
		t.Helper()
		m, diags := Parse("p", []byte(toml), opt)
		if m == nil {
			t.Fatal(lines(diags))
		}
		return m.Hash
	}
	a := parse(container, sidecar(`{"mcpServers": {"a": {"command": "x"}}}`))
	b := parse(container, sidecar(`{"mcpServers": {"a": {"command": "y"}}}`))
	if a != b || a != hash([]byte(container)) {
		t.Errorf("another sidecar, hashes %s and %s; want the manifest's, because only the member has changed", a, b)
	}
	own := container + "[mcp_servers.a]\ntype = \"stdio\"\ncommand = \"x\"\n"
	if a, b := parse(own, Options{}), parse(own, sidecar(`{`)); a != b {
		t.Errorf("a sidecar that is not read changes the hash: %s, %s", a, b)
	}
	// echo -n | sha256sum, so that other programs can compute it.
	if got := hash(); got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("hash of nothing is %s", got)
	}
}

// TestMessagesHoldNoSecrets uses values that may be secrets in every invalid form, and looks for them in the
// diagnostics.
func TestMessagesHoldNoSecrets(t *testing.T) {
	const secret = "hunter2"
	texts := []string{
		"TOKEN = \"${X:" + secret + "}\"", "TOKEN = \"${X:-" + secret + "${Y}}\"", "TOKEN = \"" + secret + "\\u0000\"",
		"TOKEN = [\"" + secret + "\"]", "TOKEN = \"" + secret + "${\"",
		"TOKEN = " + secret, "TOKEN = '" + secret, "TOKEN = \"" + secret + "\\x\"", "TOKEN = 00" + secret,
	}
	for _, s := range texts {
		for _, table := range []string{"transport.env", "transport.headers", "mcp_servers.a.env", "mcp_servers.a.headers"} {
			_, diags := Parse("p", []byte("["+table+"]\n"+s), Options{})
			if strings.Contains(lines(diags), secret) {
				t.Errorf("[%s] %s:\n%s", table, s, lines(diags))
			}
		}
	}
	if _, diags := Parse("p", []byte("transport = { type = \"stdio\", command = \"URL=postgres://me:"+secret+"@db/x npx -y server\" }"), Options{}); strings.Contains(lines(diags), secret) {
		t.Error(lines(diags))
	}
	for _, pin := range []string{"004217", "1234-4217-9012", "4217.", "0x4217g", "1_4217_"} {
		if _, diags := Parse("p", []byte("[transport.env]\nPIN = "+pin), Options{}); strings.Contains(lines(diags), "4217") {
			t.Error(lines(diags))
		}
	}
	for _, url := range []string{"http://me:hunter2@h", "http://h/?k=hunter2", "http://hunter2:x", "hunter2", "http://h/%hunter2"} {
		_, diags := Parse("p", []byte("transport = { type = \"http\", url = \""+url+"\" }"), Options{})
		if strings.Contains(lines(diags), secret) {
			t.Errorf("%s:\n%s", url, lines(diags))
		}
	}
}

func TestNearest(t *testing.T) {
	tests := []struct{ key, want string }{
		{"comand", "command"}, {"commnad", "command"}, {"COMMAND", "command"}, {"arg", "args"}, {"agrs", "args"},
		{"handshakeTimeout", "handshake_timeout"}, {"handshake-timeout", "handshake_timeout"},
		{"x", ""}, {"environment", ""}, {"", ""}, {strings.Repeat("args", 50), ""},
	}
	known := []string{"args", "command", "env", "handshake_timeout"}
	for _, tt := range tests {
		if got, ok := nearest.Word(tt.key, known); got != tt.want || ok != (tt.want != "") {
			t.Errorf("nearest(%q) = %q, want %q", tt.key, got, tt.want)
		}
	}
}
