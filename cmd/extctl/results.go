package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/terminal"
)

// mcpResult is the result of an MCP tool. Its content is decoded part by part, because one malformed part must not hide the
// others.
type mcpResult struct {
	Content           []json.RawMessage `json:"content"`
	StructuredContent json.RawMessage   `json:"structuredContent"`
	IsError           bool              `json:"isError"`
}

// mcpContent is one part of the content.
type mcpContent struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     string `json:"data"`
	MIMEType string `json:"mimeType"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Resource struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
		Blob     string `json:"blob"`
	} `json:"resource"`
}

// asMCP decodes the result of an MCP tool; ok is false for any other result.
func asMCP(result json.RawMessage) (r mcpResult, ok bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(result), []byte("{")) {
		return r, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(result, &members) != nil || json.Unmarshal(result, &r) != nil {
		return r, false
	}
	known := 0
	for _, name := range []string{"content", "structuredContent", "isError", "_meta", "resultType"} {
		if _, ok := members[name]; ok {
			known++
		}
	}
	r.IsError = string(members["isError"]) == "true" // json.Unmarshal ignores case
	_, structured := members["structuredContent"]
	if content := members["content"]; string(content) == "null" || len(content) == 0 {
		r.Content = nil
	} else {
		structured = structured || len(r.Content) == 0
	}
	// A tool that is not an MCP tool may have members of these names, but then next to others.
	return r, areTyped(r.Content) || known == len(members) && (structured || r.IsError)
}

// areTyped reports whether parts are the content of an MCP result: there are some, and those that can be read have a type.
func areTyped(parts []json.RawMessage) bool {
	for _, raw := range parts {
		var c mcpContent
		if json.Unmarshal(raw, &c) == nil && c.Type == "" {
			return false
		}
	}
	return len(parts) > 0
}

// printResult prints the result of a call. On a terminal, that of an MCP tool is printed as text, unless raw is set; anywhere
// else the result is printed byte for byte. An MCP result with isError is printed in the same way, with a message on stderr,
// and sets the exit code.
func (s *session) printResult(result json.RawMessage, raw bool) error {
	if len(result) == 0 {
		result = json.RawMessage("null")
	}
	mcp, isMCP := asMCP(result)
	if isMCP && mcp.IsError && !s.json {
		fmt.Fprintln(s.stderr, "extctl: the tool reports an error:")
	}
	var err error
	switch {
	case s.json:
		err = s.writeJSON(bytes.Join([][]byte{[]byte(`{"schema_version":1,"result":`), result, []byte("}")}, nil))
	case isMCP && !raw && daemon.IsTerminal(s.stdout):
		_, err = s.stdout.Write([]byte(mcpText(mcp)))
	default:
		err = s.writeJSON(result)
	}
	if err == nil && isMCP && mcp.IsError {
		return silentError(exitToolError)
	}
	return err
}

// mcpText is an MCP result for people: texts as they are, without characters that control a terminal, one line for anything
// else, and structured content as indented JSON, which then replaces a text with the same JSON.
func mcpText(r mcpResult) string {
	var b strings.Builder
	structured := len(r.StructuredContent) > 0 && string(r.StructuredContent) != "null"
	for _, raw := range r.Content {
		var c mcpContent
		if json.Unmarshal(raw, &c) != nil {
			fmt.Fprintln(&b, "[content that cannot be read]")
			continue
		}
		if c.Type == "text" && structured && sameJSON([]byte(c.Text), r.StructuredContent) {
			continue
		}
		b.WriteString(contentText(c) + "\n")
	}
	if structured {
		b.Write(terminal.EscapeJSON(indented(r.StructuredContent)))
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return "(an empty result)\n"
	}
	return b.String()
}

func contentText(c mcpContent) string {
	switch c.Type {
	case "text":
		return cleanText(strings.TrimSuffix(c.Text, "\n"))
	case "image", "audio":
		return describe(c.Type, c.MIMEType, "", len(c.Data)*3/4)
	case "resource":
		if c.Resource.Text != "" && len(c.Resource.Text) <= 2000 {
			return describe("resource", c.Resource.MIMEType, c.Resource.URI, len(c.Resource.Text)) + "\n" + cleanText(strings.TrimSuffix(c.Resource.Text, "\n"))
		}
		return describe("resource", c.Resource.MIMEType, c.Resource.URI, max(len(c.Resource.Text), len(c.Resource.Blob)*3/4))
	case "resource_link":
		return describe("link", c.MIMEType, strings.TrimSpace(c.Name+" "+c.URI), 0)
	}
	return describe(c.Type, c.MIMEType, "", 0)
}

// describe is one line about content that is not printed: [image image/png, 12 KB].
func describe(what, mime, name string, bytes int) string {
	text := strings.TrimSpace(strings.Join([]string{what, name, mime}, " "))
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case bytes >= 10<<10:
		text += fmt.Sprintf(", %d KB", bytes>>10)
	case bytes > 0:
		text += fmt.Sprintf(", %d bytes", bytes)
	}
	return "[" + terminal.Short(text, 300) + "]"
}

// cleanText is clean for a text of several lines, whose line breaks and tabs stay.
func cleanText(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for n, cell := range cells {
			cells[n] = terminal.Clean(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// sameJSON reports whether a and b are JSON with the same values.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// indented is JSON with a line for each member; anything else is unchanged.
func indented(text json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return text
	}
	return b.Bytes()
}
