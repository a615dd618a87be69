package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// askedVersion is the MCP version that initialize asks for: the last one with a handshake. A server answers
// with the one it speaks.
const requestedVersion = "2025-11-25"

// handshake is what a child said of itself, and what the bridge answers in its place from then on.
type handshake struct {
	dialect    manifest.Dialect // ext or mcp
	tools      []mesh.Tool
	names      map[string]bool // of the tools
	hooks      []string
	hash       string
	initialize json.RawMessage // the answer to initialize
	toolsList  json.RawMessage // the answer to tools/list
	problems   []mesh.Diagnostic
	raw        json.RawMessage // the child's own result of initialize
}

// lists reports whether the params of tools/call name a tool of the list, for a name without escapes: the usual case, and
// the one that takes no more than a look.
func (hs *handshake) hasTool(params []byte) bool {
	at, ok := rpc.Member(params, "name")
	if !ok {
		return false
	}
	name := at.In(params)
	return len(name) > 2 && name[0] == '"' && bytes.IndexByte(name, '\\') < 0 && hs.names[string(name[1:len(name)-1])]
}

// peer is what a handshake needs of a connection.
type peer interface {
	rpc.Caller
	Notify(method string, params json.RawMessage) error
}

// shakeHands greets a child. One initialize serves all dialects: native fields and MCP's together; a result
// with protocolVersion is MCP, anything else native.
func exchangeHandshake(ctx context.Context, c peer, w *workload, host hostInfo) (*handshake, error) {
	client := map[string]string{"name": "extmesh", "version": host.agentVersion}
	params, err := json.Marshal(map[string]any{
		"agent_version": host.agentVersion, "extension_id": w.id(),
		"protocolVersion": requestedVersion, "capabilities": struct{}{}, "clientInfo": client,
	})
	if err != nil {
		return nil, err
	}
	result, err := c.Call(ctx, "initialize", params)
	if err != nil {
		return nil, explainRefusal(err)
	}
	parsed, err := mesh.ParseHandshake(result)
	if err != nil {
		return nil, err
	}
	hs := &handshake{dialect: manifest.Ext, tools: parsed.Tools, hooks: parsed.Hooks, problems: parsed.Problems, raw: result}
	if parsed.Protocol != "" {
		hs.dialect = manifest.MCP
	}
	if w.dialect != manifest.Auto && w.dialect != "" && w.dialect != hs.dialect {
		return nil, fmt.Errorf("the manifest says dialect %q, but the answer to initialize is that of %q", w.dialect, hs.dialect)
	}
	if hs.dialect == manifest.MCP {
		if err := c.Notify("notifications/initialized", nil); err != nil {
			return nil, err
		}
		if hs.tools, err = listTools(ctx, c, hs); err != nil {
			return nil, err
		}
	}
	return hs, hs.finish(parsed, w)
}

// explainRefusal adds what is known about servers that refuse the handshake.
func explainRefusal(err error) error {
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Code == -32022 {
		return fmt.Errorf("initialize: the server speaks only MCP without a handshake (2026-07-28 and later), which this bridge does not: %w", err)
	}
	return fmt.Errorf("initialize: %w", err)
}

// maxPages bounds a listing; with the cursors seen so far it stops a server that goes round in circles.
const maxPages = 1000

// listTools reads an MCP server's tools, page by page. A server without the tools capability has none.
func listTools(ctx context.Context, c rpc.Caller, hs *handshake) ([]mesh.Tool, error) {
	var capable struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if err := json.Unmarshal(hs.raw, &capable); err == nil && capable.Capabilities != nil {
		if _, ok := capable.Capabilities["tools"]; !ok {
			return nil, nil
		}
	}
	var all []mesh.Tool
	seen := map[string]bool{}
	var params json.RawMessage
	for page := 1; ; page++ {
		result, err := c.Call(ctx, "tools/list", params)
		if err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		var r struct {
			Tools      json.RawMessage `json:"tools"`
			NextCursor *string         `json:"nextCursor"`
		}
		if err := json.Unmarshal(result, &r); err != nil {
			return nil, fmt.Errorf("the result of tools/list: %w", err)
		}
		if len(r.Tools) == 0 {
			r.Tools = json.RawMessage("[]")
		}
		tools, problems, err := mesh.ParseTools(r.Tools)
		if err != nil {
			return nil, fmt.Errorf("the result of tools/list: %w", err)
		}
		all, hs.problems = append(all, tools...), append(hs.problems, problems...)
		if len(all) > mesh.MaxTools {
			return nil, fmt.Errorf("the server lists over %d tools", mesh.MaxTools)
		}
		if r.NextCursor == nil {
			return all, nil
		}
		if seen[*r.NextCursor] || page == maxPages {
			hs.problems = append(hs.problems, mesh.Diagnostic{Level: "warn", Code: "endless_list",
				Message: fmt.Sprintf("tools/list does not end: page %d points back; %d tools were taken", page, len(all))})
			return all, nil
		}
		seen[*r.NextCursor] = true
		if params, err = json.Marshal(map[string]string{"cursor": *r.NextCursor}); err != nil {
			return nil, err
		}
	}
}

// maxProblems is how many problems of one handshake are told.
const maxProblems = 20

// finish hashes what was said, compares it with the manifest, and makes the answers that the bridge gives in
// the child's place.
func (hs *handshake) finish(parsed mesh.Handshake, w *workload) (err error) {
	hs.tools = uniqueTools(hs)
	if hs.hash, err = mesh.HandshakeHash(hs.tools, hs.hooks); err != nil {
		return err
	}
	hs.problems = append(hs.problems, undeclared(w, hs)...)
	if more := len(hs.problems) - maxProblems; more > 0 { // a page of a list has as many
		hs.problems = append(hs.problems[:maxProblems:maxProblems], mesh.Diagnostic{Level: "warn", Code: "more",
			Message: fmt.Sprintf("%d more problems are left out", more)})
	}
	tools := []byte("[")
	for i, t := range hs.tools {
		if i > 0 {
			tools = append(tools, ',')
		}
		tools = t.AppendDescriptor(tools)
	}
	tools = append(tools, ']')
	hs.toolsList = slices.Concat([]byte(`{"tools":`), tools, []byte("}"))
	var b bytes.Buffer
	version, err := json.Marshal(parsed.ServerVersion)
	if err != nil {
		return err
	}
	hooks, err := json.Marshal(append([]string{}, hs.hooks...))
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, `{"server_version":%s,"tools":%s,"hooks":%s`, version, tools, hooks)
	if len(hs.problems) > 0 { // for the catalog
		for i, d := range hs.problems {
			hs.problems[i].Message = w.clean(d.Message, maxReason)
		}
		problems, err := json.Marshal(hs.problems)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, `,"diagnostics":%s`, problems)
	}
	if hs.dialect == manifest.MCP {
		if err := appendMCP(&b, hs.raw); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	hs.initialize = b.Bytes()
	return nil
}

// uniqueTools drops the tools of later pages that repeat a name, and sets names.
func uniqueTools(hs *handshake) []mesh.Tool {
	seen := make(map[string]bool, len(hs.tools))
	hs.names = seen
	return slices.DeleteFunc(hs.tools, func(t mesh.Tool) bool {
		if seen[t.Own] {
			hs.problems = append(hs.problems, mesh.Diagnostic{Level: "warn", Code: "bad_tool",
				Message: fmt.Sprintf("a second tool named %q is left out", t.Own)})
			return true
		}
		seen[t.Own] = true
		return false
	})
}

// undeclared compares the tools served with those declared.
func undeclared(w *workload, hs *handshake) []mesh.Diagnostic {
	declared := w.declared.Tools
	if slices.Contains(declared, "*") || w.announce.Parent != "" {
		return nil
	}
	var out []mesh.Diagnostic
	warn := func(format, name string) {
		if len(out) < 20 {
			out = append(out, mesh.Diagnostic{Level: "warn", Code: "undeclared", Message: fmt.Sprintf(format, name)})
		}
	}
	served := map[string]bool{}
	for _, t := range hs.tools {
		served[t.Own] = true
		if !slices.Contains(declared, t.Own) {
			warn("the extension serves the tool %q, which its manifest does not declare", t.Own)
		}
	}
	for _, name := range declared {
		if !served[name] {
			warn("the manifest declares the tool %q, which the extension does not serve", name)
		}
	}
	return out
}

// appendMCP appends what an MCP server said of itself, as it came.
func appendMCP(b *bytes.Buffer, raw json.RawMessage) error {
	members, err := mesh.Members(raw)
	if err != nil {
		return err
	}
	for _, m := range members {
		switch m.Key {
		case "protocolVersion", "capabilities", "serverInfo", "instructions":
			fmt.Fprintf(b, `,"%s":%s`, m.Key, m.Value)
		}
	}
	return nil
}
