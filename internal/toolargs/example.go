package toolargs

import (
	"bytes"
	"encoding/json"
	"runtime"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// Suggest returns a call of one of the tools that does no harm, with args as words of a shell: of a tool that is annotated as
// read-only if there is one, never of one that is annotated as destructive. Of those it is the one with the fewest required
// arguments, but at least one if there is such a tool: a call with an argument shows more. ok is false if there is none.
func Suggest(tools []wire.Tool) (tool string, args []string, ok bool) {
	var best suggestion
	for _, t := range tools {
		if s, valid := suggest(t); valid && (!ok || s.before(best)) {
			best, ok = s, true
		}
	}
	return best.tool, best.args, ok
}

// suggestion is a call that Suggest may return.
type suggestion struct {
	tool     string
	args     []string // words for the shell
	readOnly bool
}

// suggest returns a call of a tool; ok is false if the tool is destructive, or if no valid arguments were found.
func suggest(t wire.Tool) (s suggestion, ok bool) {
	var hints struct {
		ReadOnly    bool `json:"readOnlyHint"`
		Destructive bool `json:"destructiveHint"`
	}
	_ = json.Unmarshal(t.Member("annotations"), &hints) // without hints it is neither
	if hints.Destructive && !hints.ReadOnly {
		return s, false
	}
	args, ok := Example(t.InputSchema)
	return suggestion{t.Name, args, hints.ReadOnly}, ok
}

// before reports whether s is to be shown instead of o.
func (s suggestion) before(o suggestion) bool {
	switch {
	case s.readOnly != o.readOnly:
		return s.readOnly
	case len(s.args) == 0 || len(o.args) == 0:
		return len(s.args) > len(o.args)
	}
	return len(s.args) < len(o.args)
}

// Example gives each required argument of a schema a value, as words for the shell. ok is false if the schema does
// not accept them.
func Example(input json.RawMessage) (words []string, ok bool) {
	var top struct {
		Required   []string                   `json:"required"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	v, values := newViewer(input), map[string]json.RawMessage{}
	if len(input) > 0 && json.Unmarshal(v.resolved(input, 0), &top) != nil {
		return nil, false
	}
	for _, key := range top.Required {
		if _, again := values[key]; again || key == "" || strings.ContainsAny(key[:1], "-@{") || strings.Contains(key, "=") || strings.HasSuffix(key, ":") {
			return nil, false // a flag, or not an argument as a word
		}
		value, known := exampleValue(key, v.resolved(top.Properties[key], 0))
		values[key] = value
		plain := word(key, value, known)
		quoted := terminal.ShellWord(plain)
		if runtime.GOOS == "windows" && quoted != plain {
			return nil, false // its shells do not have these quotes, and the text is the extension's
		}
		words = append(words, quoted)
	}
	if check, err := schema.Compile(input); err == nil {
		object, err := json.Marshal(values)
		if err != nil || check(object) != nil {
			return nil, false
		}
	}
	return words, true
}

// word is key=value, or key:=JSON where a plain value would be read as something else. types are those of the schema.
func word(key string, value json.RawMessage, types []string) string {
	var text string
	if json.Unmarshal(value, &text) == nil && (len(types) == 0 || slices.Contains(types, "string")) && !bytes.Equal(value, []byte("null")) {
		return key + "=" + text
	}
	if len(types) > 0 && !slices.Contains(types, "string") && value[0] != '"' {
		return key + "=" + string(value)
	}
	return key + ":=" + string(value)
}

// exampleValue returns a value for a property: one that its schema contains, else one of its type. types are the schema's.
func exampleValue(key string, property json.RawMessage) (value json.RawMessage, types []string) {
	var p struct {
		Type     json.RawMessage   `json:"type"`
		Const    json.RawMessage   `json:"const"`
		Default  json.RawMessage   `json:"default"`
		Examples []json.RawMessage `json:"examples"`
		Enum     []json.RawMessage `json:"enum"`
		Minimum  json.RawMessage   `json:"minimum"`
		Format   string            `json:"format"`
	}
	_ = json.Unmarshal(property, &p) // a property without a usable schema is a string
	types = typesIn(p.Type)
	for _, named := range [][]json.RawMessage{{p.Const}, {p.Default}, p.Examples, p.Enum} {
		if len(named) > 0 && len(named[0]) > 0 && !bytes.Equal(named[0], []byte("null")) {
			return named[0], types
		}
	}
	byType := map[string]string{"integer": "1", "number": "1", "boolean": "true", "array": "[]", "object": "{}", "null": "null"}
	if len(types) == 0 || slices.Contains(types, "string") {
		return exampleString(key, p.Format), types
	}
	if len(p.Minimum) > 0 && (types[0] == "integer" || types[0] == "number") {
		return p.Minimum, types
	}
	if text, ok := byType[types[0]]; ok {
		return json.RawMessage(text), types
	}
	return json.RawMessage("null"), types
}

// exampleString returns a string of a format. Example cannot check it: formats are only annotations for the schema.
func exampleString(key, format string) json.RawMessage {
	text := map[string]string{"date": "2026-01-31", "date-time": "2026-01-31T12:00:00Z", "time": "12:00:00Z", "email": "ada@example.org",
		"uri": "https://example.org", "url": "https://example.org", "uuid": "00000000-0000-4000-8000-000000000000"}[format]
	switch {
	case text != "":
	case key == "name":
		text = "Ada"
	case key == "url" || key == "uri":
		text = "https://example.org"
	default:
		text = "hello"
	}
	return json.RawMessage(`"` + text + `"`)
}
