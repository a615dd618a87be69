package document

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

const mesh = `{"command":"extctl","args":["mcp"]}`

// meshLines is the value as it is written with two spaces of indentation, in an object of the second level.
const meshLines = "{\n      \"command\": \"extctl\",\n      \"args\": [\n        \"mcp\"\n      ]\n    }"

// TestSetJSON changes a member, and takes it out again: what was there before must be the same, except in the rows without undo.
func TestSetJSON(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"empty file":   {"", "{\n  \"mcpServers\": {\n    \"mesh\": " + meshLines + "\n  }\n}\n"},
		"empty object": {"{}", `{"mcpServers": {"mesh":` + mesh + `}}`},
		"empty servers": {"{\n  \"mcpServers\": {},\n  \"x\": 1\n}\n",
			"{\n  \"mcpServers\": {\n    \"mesh\": " + meshLines + "\n  },\n  \"x\": 1\n}\n"},
		"one line": {`{"mcpServers": {"a": {"command": "x"}}}`, `{"mcpServers": {"a": {"command": "x"}, "mesh": ` + mesh + `}}`},
		"lines": {"{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}",
			"{\n  \"mcpServers\": {\n    \"a\": {},\n    \"mesh\": " + meshLines + "\n  }\n}"},
		"comment after the last": {"{\n  \"mcpServers\": {\n    \"a\": {} // mine\n    // end\n  }\n}",
			"{\n  \"mcpServers\": {\n    \"a\": {}, // mine\n    \"mesh\": " + meshLines + "\n    // end\n  }\n}"},
		"trailing comma": {"{\n  \"mcpServers\": {\n    \"a\": {}, // mine\n  },\n}",
			"{\n  \"mcpServers\": {\n    \"a\": {}, // mine\n    \"mesh\": " + meshLines + ",\n  },\n}"},
		"replaced": {"{\n  \"mcpServers\": {\n    \"mesh\": 1, // mine\n    \"b\": {}\n  }\n}",
			"{\n  \"mcpServers\": {\n    \"mesh\": " + meshLines + ", // mine\n    \"b\": {}\n  }\n}"},
		"other members": {"{\n  \"theme\": \"a, b // c\"\n}\n",
			"{\n  \"theme\": \"a, b // c\",\n  \"mcpServers\": {\n    \"mesh\": " + meshLines + "\n  }\n}\n"},
		"byte order mark": {bom + `{"mcpServers": {"a": 1}}`, bom + `{"mcpServers": {"a": 1, "mesh": ` + mesh + `}}`},
		"comma in a comment": {"{\n  \"mcpServers\": {\n    \"a\": 1 /* , */ , // , \n  }\n}",
			"{\n  \"mcpServers\": {\n    \"a\": 1 /* , */ , // , \n    \"mesh\": " + meshLines + ",\n  }\n}"},
		"comment only": {"{\n  \"mcpServers\": {\n    // none yet\n  }\n}",
			"{\n  \"mcpServers\": {\n    \"mesh\": " + meshLines + "\n    // none yet\n  }\n}"},
		"inner objects": {`{"mcpServers": {"mesh": {"mesh": 1}}, "mesh": 2}`, `{"mcpServers": {"mesh": ` + mesh + `}, "mesh": 2}`},
	} {
		for _, eol := range []string{"\n", "\r\n"} {
			before, after := strings.ReplaceAll(c.before, "\n", eol), strings.ReplaceAll(c.after, "\n", eol)
			if name == "empty file" {
				before, after = c.before, c.after // has no line ends of its own
			}
			got, err := SetJSON(before, []string{"mcpServers", "mesh"}, json.RawMessage(mesh))
			if err != nil || got != after {
				t.Errorf("%s, %q: %v\n%s\nwant\n%s", name, eol, err, got, after)
			}
		}
	}
}

func TestSetJSONIndentation(t *testing.T) {
	before := "{\n\t\"servers\": {\n\t\t\"a\": {}\n\t}\n}\n"
	got, err := SetJSON(before, []string{"servers", "b"}, json.RawMessage(`{"url":"x"}`))
	if want := "{\n\t\"servers\": {\n\t\t\"a\": {},\n\t\t\"b\": {\n\t\t\t\"url\": \"x\"\n\t\t}\n\t}\n}\n"; err != nil || got != want {
		t.Errorf("%v %q", err, got)
	}
}

func TestRemoveJSON(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"absent":              {`{"s": {"a": 1}}`, `{"s": {"a": 1}}`},
		"no object":           {`{}`, `{}`},
		"only":                {"{\n  \"s\": {\n    \"x\": 1\n  }\n}", "{\n  \"s\": {\n  }\n}"},
		"only, one line":      {`{"s": {"x": 1}}`, `{"s": {}}`},
		"first, one line":     {`{"s": {"x": 1, "b": 2}}`, `{"s": {"b": 2}}`},
		"last, one line":      {`{"s": {"b": 2, "x": 1}}`, `{"s": {"b": 2}}`},
		"first":               {"{\"s\": {\n  \"x\": {\n  }, // gone\n  // b's\n  \"b\": 2\n}}", "{\"s\": {\n  // b's\n  \"b\": 2\n}}"},
		"last":                {"{\"s\": {\n  \"b\": 2, // b's\n  \"x\": 1\n}}", "{\"s\": {\n  \"b\": 2 // b's\n}}"},
		"last, with comma":    {"{\"s\": {\n  \"b\": 2,\n  \"x\": 1,\n}}", "{\"s\": {\n  \"b\": 2,\n}}"},
		"middle, shared line": {"{\"s\": {\n  \"a\": 1, \"x\": 1, \"b\": 2\n}}", "{\"s\": {\n  \"a\": 1, \"b\": 2\n}}"},
		"comma first":         {"{\"s\": {\n  \"a\": 1\n, \"x\": 2\n}}", "{\"s\": {\n  \"a\": 1\n \n}}"},
	} {
		for _, eol := range []string{"\n", "\r\n"} {
			got, err := RemoveJSON(strings.ReplaceAll(c.before, "\n", eol), []string{"s", "x"})
			if want := strings.ReplaceAll(c.after, "\n", eol); err != nil || got != want {
				t.Errorf("%s, %q: %v\n%s\nwant\n%s", name, eol, err, got, want)
			}
		}
	}
}

// TestRefusedEdits checks that texts with forms that are not supported stay as they are.
func TestRefusedEdits(t *testing.T) {
	for name, text := range map[string]string{
		"twice": `{"s": {}, "s": {"x": 1}}`, "no object": `{"s": []}`, "null": `{"s": null}`, "comment": "{\n\"s\": {/* x */}\n}",
		"block comment": "{\n\"s\": {\n\"a\": 1 /* two\nlines */\n}}",
	} {
		if got, err := SetJSON(text, []string{"s", "x"}, json.RawMessage("1")); !errors.Is(err, ErrEdit) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	for _, text := range []string{"[1]", "{", "null", "{} {}", `"x"`} {
		if got, err := SetJSON(text, []string{"s", "x"}, json.RawMessage("1")); err == nil {
			t.Errorf("%s: %s", text, got)
		}
	}
	for name, text := range map[string]string{"inline": "mcp_servers = {a = {command = \"x\"}}\n", "no TOML": "a = \n", "a string": "mcp_servers = 1\n"} {
		if got, err := AppendTOML(text, []string{"mcp_servers", "mesh"}, "command = \"extctl\"\n"); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got, err := RemoveTOML("mcp_servers = {a = {command = \"x\"}}\n", []string{"mcp_servers", "a"}); !errors.Is(err, ErrEdit) {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestTOMLEdits(t *testing.T) {
	const table = "[mcp_servers.mesh]\ncommand = \"extctl\"\nargs = [\"mcp\"]\n"
	for name, c := range map[string]struct{ before, after, removed string }{
		"empty":       {"", table, ""},
		"no line end": {"model = \"x\"", "model = \"x\"\n\n" + table, "model = \"x\"\n\n"},
		"comments": {"# top\nmodel = \"x\" # mine\n\n[mcp_servers.a] # a\ncommand = \"a\"\n\n", "# top\nmodel = \"x\" # mine\n\n[mcp_servers.a] # a\ncommand = \"a\"\n\n" + table,
			"# top\nmodel = \"x\" # mine\n\n[mcp_servers.a] # a\ncommand = \"a\"\n\n"},
		"replaced": {"[mcp_servers.mesh]\ncommand = \"old\"\n[mcp_servers.mesh.env]\nA = \"1\"\n\n# b's\n[b]\nx = [\n  1,\n]\n",
			"# b's\n[b]\nx = [\n  1,\n]\n\n" + table, "# b's\n[b]\nx = [\n  1,\n]\n\n"},
		"dotted":       {"[mcp_servers]\nmesh.command = \"x\"\na = {command = \"a\"}\n", "[mcp_servers]\na = {command = \"a\"}\n\n" + table, "[mcp_servers]\na = {command = \"a\"}\n\n"},
		"similar name": {"[mcp_servers.mesh2]\ncommand = \"x\"\n", "[mcp_servers.mesh2]\ncommand = \"x\"\n\n" + table, "[mcp_servers.mesh2]\ncommand = \"x\"\n\n"},
	} {
		for _, eol := range []string{"\n", "\r\n"} {
			lines := func(s string) string { return strings.ReplaceAll(s, "\n", eol) }
			before, after, removed := lines(c.before), lines(c.after), lines(c.removed)
			if !strings.Contains(before, "\n") {
				after, removed = c.after, c.removed
			}
			got, err := AppendTOML(before, []string{"mcp_servers", "mesh"}, "command = \"extctl\"\nargs = [\"mcp\"]\n")
			if err != nil || got != after {
				t.Errorf("%s, %q: %v\n%s\nwant\n%s", name, eol, err, got, after)
			}
			if got, err := RemoveTOML(got, []string{"mcp_servers", "mesh"}); err != nil || got != removed {
				t.Errorf("%s, %q, removed: %v\n%q\nwant\n%q", name, eol, err, got, removed)
			}
		}
	}
	quoted := "[projects.\"/home/ada.b\"]\ntrust = true\n\n[mcp_servers.\"a b\"]\ncommand = \"x\"\n"
	if got, err := RemoveTOML(quoted, []string{"mcp_servers", "a b"}); err != nil || got != "[projects.\"/home/ada.b\"]\ntrust = true\n\n" {
		t.Errorf("%v %q", err, got)
	}
}

// FuzzEdits edits any text. An edit that is made changes one value and nothing else.
func FuzzEdits(f *testing.F) {
	for _, s := range []string{"", "{}", `{"s": {"a": 1, "x": {}}, "b": [1, 2]}`, "{\n  // c\n  \"s\": {\n    \"a\": 1, // d\n  },\n}\n",
		"[s.x]\na = 1\n\n[s.y.z]\nb = \"\"\"\nq\"\"\"\n", "a = 1\r\n[s]\r\nx = {y = 1}\r\n", bom + "{\"s\":{\"x\":1}}"} {
		f.Add(s, "x")
		f.Add(s, "a b")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		path := []string{"s", name}
		if set, err := SetJSON(text, path, json.RawMessage(`{"k":[1,"v"]}`)); err == nil {
			compare(t, ParseJSON, text, set, path, map[string]any{"k": []any{json.Number("1"), "v"}})
			gone, err := RemoveJSON(set, path)
			if err != nil && !errors.Is(err, ErrEdit) {
				t.Fatal(err)
			} else if err == nil {
				compare(t, ParseJSON, set, gone, path, nil)
			}
		}
		if set, err := AppendTOML(text, path, "k = \"v\"\n"); err == nil {
			compare(t, ParseTOML, text, set, path, map[string]any{"k": "v"})
			if gone, err := RemoveTOML(set, path); err == nil {
				compare(t, ParseTOML, set, gone, path, nil)
			}
		}
	})
}

// compare checks the trees of two texts without the code under test.
func compare(t *testing.T, parse func(string) (map[string]any, error), before, after string, path []string, want any) {
	t.Helper()
	if strings.Trim(strings.TrimPrefix(before, bom), " \t\r\n") == "" {
		before = "{}"
		if _, err := parse(before); err != nil {
			before = ""
		}
	}
	old, err := parse(before)
	if err != nil {
		t.Fatal(err)
	}
	now, err := parse(after)
	if err != nil {
		t.Fatalf("%v: %q became %q", err, before, after)
	}
	sub, _ := now[path[0]].(map[string]any)
	if got, ok := sub[path[1]]; ok != (want != nil) || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q became %q: %v", before, after, got)
	}
	for _, tree := range []map[string]any{old, now} {
		if sub, ok := tree[path[0]].(map[string]any); ok {
			if delete(sub, path[1]); len(sub) == 0 {
				delete(tree, path[0])
			}
		}
	}
	if !reflect.DeepEqual(old, now) {
		t.Fatalf("%q became %q: something else changed", before, after)
	}
}
