package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestMCPText: what people see of an MCP result on a terminal.
func TestMCPText(t *testing.T) {
	for in, want := range map[string]string{
		`{"content":[{"type":"text","text":"The sum is 3.\n"}]}`:                                            "The sum is 3.\n",
		`{"content":[{"type":"text","text":"a\tb\n\u001b[31mc"}]}`:                                          "a\tb\n?[31mc\n",
		`{"content":[{"type":"image","mimeType":"image/png","data":"` + strings.Repeat("A", 40000) + `"}]}`: "[image image/png, 29 KB]\n",
		`{"content":[{"type":"resource_link","uri":"file:///x","name":"x"}]}`:                               "[link x file:///x]\n",
		`{"content":[{"type":"resource","resource":{"uri":"file:///x","text":"hi"}}]}`:                      "[resource file:///x, 2 bytes]\nhi\n",
		`{"content":[{"type":"text","text":"{\"a\": 1}"}],"structuredContent":{"a":1}}`:                     "{\n  \"a\": 1\n}\n",
		`{"content":[{"type":"text","text":"one"},7],"structuredContent":{"a":1}}`:                          "one\n[content that cannot be read]\n{\n  \"a\": 1\n}\n",
		`{"content":[]}`:                "(an empty result)\n",
		`{"content":[],"_meta":{}}`:     "(an empty result)\n",
		`{"content":[],"isError":true}`: "(an empty result)\n",
		`{"content":[{"type":"text","text":"x"}],"resultType":"complete","own":1}`: "x\n",
		`{"structuredContent":{"a":1},"isError":false}`:                            "{\n  \"a\": 1\n}\n",
	} {
		r, ok := asMCP(json.RawMessage(in))
		if text := mcpText(r); !ok || text != want {
			t.Errorf("%.80s: %q, want %q", in, text, want)
		}
	}
	for _, other := range []string{`{"greeting":"hi"}`, `[]`, `"content"`, `{"content":"text"}`,
		`{"content":[{"title":"a"},{"title":"b"}],"total":2}`, `{"content":[],"next":5}`, `{"content":null,"path":"x"}`,
		`{"isError":true,"message":"disk full"}`, `{"iserror":true}`, `{"structuredContent":{},"rows":3}`} {
		if _, ok := asMCP(json.RawMessage(other)); ok {
			t.Errorf("%s is taken for an MCP result", other)
		}
	}
}

// TestForeignVerbs: each verb of another program leads to one that exists.
func TestForeignVerbs(t *testing.T) {
	root := rootCmd(&app{})
	for word := range foreignVerbs {
		f, ok := unknownVerb(root, word).(*failure)
		if !ok || !strings.HasPrefix(f.hint, "did you mean extctl ") {
			t.Errorf("%s: %v", word, f)
		}
	}
	for word, hint := range map[string]string{
		"stop": "did you mean extctl drain (", "rm": "did you mean extctl uninstall (", "ps": "did you mean extctl list (",
		"lst": "did you mean list?", "cal": "did you mean call or calls?", "wacth": "did you mean watch or wait?", "zz": "see extctl --help", "PS": "did you mean extctl list (",
	} {
		if f, ok := unknownVerb(root, word).(*failure); !ok || !strings.HasPrefix(f.hint, hint) {
			t.Errorf("%s: %q, want %q", word, f.hint, hint)
		}
	}
}

// TestWithoutDashes: the arguments of a tool that are given as flags are written as the hint shows.
func TestWithoutDashes(t *testing.T) {
	root := rootCmd(&app{})
	cmd, _, err := root.Find([]string{"call"})
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"call greet --name Ada":              "extctl call greet name=Ada",
		"call greet --name=Ada --timeout 3s": "extctl call greet name=Ada --timeout 3s",
		"call greet --loud --name Ada":       "extctl call greet loud=true name=Ada",
		"call greet --loud name=Ada":         "extctl call greet loud=true name=Ada",
		"call --loud greet name=Ada":         "extctl call greet name=Ada loud=true",
	} {
		have := withoutDashes(cmd, strings.Fields(in))
		if have != want {
			t.Errorf("%s: %s, want %s", in, have, want)
		}
		checkLine(t, have)
	}
}

// checkLine parses a command line of extctl: its verb, its flags and the number of its arguments.
func checkLine(t *testing.T, line string) {
	t.Helper()
	if err := parseLine(strings.Fields(line)[1:]); err != nil {
		t.Errorf("%s: %v", line, err)
	}
}

func parseLine(words []string) error {
	root := rootCmd(&app{})
	cmd, rest, err := root.Find(words)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil && cmd != root {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	return err
}
