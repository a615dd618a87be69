package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// requestedVersion is the MCP version in initialize: the last one with a handshake. The server responds with the version
// that it uses.
const requestedVersion = "2025-11-25"

// handshake is the result of a child's handshake, with the responses that the bridge gives to later requests for it.
type handshake struct {
	dialect    manifest.Dialect // ext or mcp
	tools      []wire.Tool
	names      map[string]bool // of the tools
	hooks      []string
	hash       string
	initialize json.RawMessage // the response to initialize
	toolsList  json.RawMessage // the response to tools/list
	problems   []wire.Diagnostic
	raw        json.RawMessage // the child's result of initialize
	pages      [][]byte        // until finish: the descriptors in each page of an MCP server's tools/list
	incomplete bool            // a list could not be read, and is to be requested again
	listings   listings        // of an MCP server: prompts, resources and templates
	took       time.Duration   // how long initialize took over HTTP, where some servers start a process for each request; 0 for a child
}

// listedTool returns the name of a listed tool in the params of tools/call. It handles the common case, a name without
// escapes, without decoding the params.
func (hs *handshake) listedTool(params []byte) (name string, ok bool) {
	at, ok := jsonrpc.Member(params, "name")
	if !ok {
		return "", false
	}
	text := at.In(params)
	if len(text) <= 2 || text[0] != '"' || bytes.IndexByte(text, '\\') >= 0 {
		return "", false
	}
	name = string(text[1 : len(text)-1])
	return name, hs.names[name]
}

// peer is the part of a connection that a handshake uses.
type peer interface {
	rpc.Caller
	Notify(method string, params json.RawMessage) error
}

// exchangeHandshake performs the handshake. One initialize request serves both dialects, with the members of each; a
// result with protocolVersion means MCP, anything else the native dialect.
// before are the lists of the last run, which count until a slow server has answered.
func exchangeHandshake(ctx context.Context, c peer, w *workload, agentVersion string, before listings) (*handshake, error) {
	client := map[string]string{"name": "extmesh", "version": agentVersion}
	params, err := json.Marshal(map[string]any{
		"agent_version": agentVersion, "extension_id": w.id(),
		"protocolVersion": requestedVersion, "capabilities": struct{}{}, "clientInfo": client,
	})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	result, err := c.Call(ctx, "initialize", params)
	took := time.Since(began)
	if err != nil {
		return nil, explainRefusal(err)
	}
	if len(result) > maxToolsList {
		return nil, fmt.Errorf("the answer to initialize has %d bytes; at most %d are possible", len(result), maxToolsList)
	}
	parsed, err := wire.ParseHandshake(result)
	if err != nil {
		return nil, err
	}
	hs := &handshake{dialect: manifest.Ext, tools: parsed.Tools, hooks: parsed.Hooks, problems: parsed.Problems, raw: result}
	if w.transport.Type == manifest.HTTP {
		hs.took = took
	}
	if parsed.Protocol != "" {
		hs.dialect = manifest.MCP
	}
	if w.dialect != manifest.Auto && w.dialect != "" && w.dialect != hs.dialect {
		return nil, fmt.Errorf("the manifest sets dialect %q, but the response to initialize is in dialect %q", w.dialect, hs.dialect)
	}
	if hs.dialect == manifest.MCP {
		if err := c.Notify("notifications/initialized", nil); err != nil {
			return nil, err
		}
		if hs.tools, err = listTools(ctx, c, hs); isOwnError(err) {
			hs.withoutTools(err)
		} else if err != nil {
			return nil, err
		}
		left := w.limits.start.Idle - time.Since(began) - firstListTimeout // of the start
		cut, err := readListings(ctx, c, w, hs, parsed.Server, before, hs.listTime(firstListTimeout, left))
		if err != nil {
			return nil, err
		}
		hs.incomplete = hs.incomplete || cut
	}
	return hs, hs.finish(parsed, w)
}

// isOwnError reports whether err is an error with which the extension itself has answered.
func isOwnError(err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return ok && e.Details().Kind == ""
}

// withoutTools makes hs that of a server that has answered tools/list with an error: it is ready, since it may offer prompts
// and resources, and may have tools later.
func (hs *handshake) withoutTools(err error) {
	hs.tools, hs.pages, hs.incomplete = nil, nil, true
	hs.problems = append(hs.problems, wire.Diagnostic{Level: "error", Code: "no_tools",
		Message: fmt.Sprintf("the server answers initialize, but %v; it is ready without tools, and tools/list is repeated", err)})
}

// explainRefusal adds an explanation to known errors of servers that refuse the handshake.
func explainRefusal(err error) error {
	if e, ok := errors.AsType[*rpc.Error](err); ok && e.Code == -32022 {
		return fmt.Errorf("initialize: the server speaks only MCP without a handshake (2026-07-28 and later), which this bridge does not support: %w", err)
	}
	return fmt.Errorf("initialize: %w", err)
}

// The limits of a list that is read page by page. It also ends when a cursor is repeated.
const (
	maxPages     = 1000
	maxCursor    = 4 << 10  // bytes
	maxToolsList = 16 << 20 // bytes of all descriptors
)

// cursors are those that a server has sent for one list.
type cursors map[string]bool

// ends reports whether the list is not read beyond a page.
func (c cursors) ends(page int, next string) bool {
	known := c[next]
	c[next] = true
	return known || page == maxPages || len(next) > maxCursor
}

// listTools reads an MCP server's tools, page by page. A server without the tools capability has none.
func listTools(ctx context.Context, c rpc.Caller, hs *handshake) ([]wire.Tool, error) {
	if at, ok := jsonrpc.Member(hs.raw, "capabilities"); ok && hs.raw[at.From] == '{' {
		if server := (&wire.Server{Capabilities: at.In(hs.raw)}); !server.Offers("tools") {
			return nil, nil
		}
	}
	var all []wire.Tool
	seen, size := cursors{}, 0
	var params, first json.RawMessage
	cursor := ""
	for page := 1; ; page++ {
		result, err := c.Call(ctx, "tools/list", params)
		if err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		if page == 1 {
			first = result
		} else if cursor == "" && bytes.Equal(result, first) { // the server means the end by an empty cursor
			return all, nil
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
		if size += len(r.Tools); size > maxToolsList {
			return nil, fmt.Errorf("the server's list of tools has more than %d MiB", maxToolsList>>20)
		}
		tools, problems, err := wire.ParseTools(r.Tools)
		if err != nil {
			return nil, fmt.Errorf("the result of tools/list: %w", err)
		}
		if page := bytes.TrimSpace(r.Tools); page[0] == '[' {
			if page = bytes.TrimSpace(page[1 : len(page)-1]); len(page) > 0 {
				hs.pages = append(hs.pages, page)
			}
		}
		all, hs.problems = append(all, tools...), append(hs.problems, problems...)
		if len(all) > wire.MaxTools {
			return nil, fmt.Errorf("the server lists more than %d tools", wire.MaxTools)
		}
		if r.NextCursor == nil {
			return all, nil
		}
		cursor = *r.NextCursor
		if seen.ends(page, cursor) {
			hs.problems = append(hs.problems, wire.Diagnostic{Level: "warn", Code: "endless_list",
				Message: fmt.Sprintf("reading tools/list stopped at page %d, because the pages do not end; %d tools are used", page, len(all))})
			return all, nil
		}
		if params, err = json.Marshal(map[string]string{"cursor": cursor}); err != nil {
			return nil, err
		}
	}
}

// maxProblems is how many problems of one handshake are reported.
const maxProblems = 20

// finish hashes the handshake, compares it with the manifest, and builds the responses to initialize and tools/list.
func (hs *handshake) finish(parsed wire.Handshake, w *workload) (err error) {
	hs.tools = uniqueTools(hs)
	if hs.hash, err = wire.HandshakeHash(hs.tools, hs.hooks); err != nil {
		return err
	}
	if parsed.Server != nil {
		parsed.Server.Lists = hs.listings.lists()
		if hs.hash, err = withServer(hs.hash, parsed.Server); err != nil {
			return err
		}
	}
	hs.problems = append(hs.problems, undeclared(w, hs)...)
	if more := len(hs.problems) - maxProblems; more > 0 { // a list can have that many on one page
		hs.problems = append(hs.problems[:maxProblems:maxProblems], wire.Diagnostic{Level: "warn", Code: "more",
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
	if hs.dialect == manifest.MCP { // as the server's own
		hs.toolsList = slices.Concat([]byte(`{"tools":[`), bytes.Join(hs.pages, []byte(",")), []byte("]}"))
		hs.pages = nil
	}
	for i, d := range hs.problems { // shown in the catalog
		hs.problems[i].Message = w.clean(d.Message, maxReason)
	}
	hs.initialize, err = hs.answer(parsed.ServerVersion, tools)
	return err
}

// answer returns the answer to initialize.
func (hs *handshake) answer(serverVersion string, tools []byte) ([]byte, error) {
	var b bytes.Buffer
	version, err := json.Marshal(serverVersion)
	if err != nil {
		return nil, err
	}
	hooks, err := json.Marshal(append([]string{}, hs.hooks...))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"server_version":%s,"tools":%s,"hooks":%s`, version, tools, hooks)
	if len(hs.problems) > 0 {
		problems, err := json.Marshal(hs.problems)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"diagnostics":%s`, problems)
	}
	if hs.dialect == manifest.MCP {
		if err := appendMCP(&b, hs.raw); err != nil {
			return nil, err
		}
		lists, err := json.Marshal(hs.listings.lists())
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"lists":%s`, lists)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// withServer returns the hash of a handshake with an MCP server: what the server declared is a part of it.
func withServer(hash string, server *wire.Server) (string, error) {
	text, err := json.Marshal(server)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(hash), text...))
	return hex.EncodeToString(sum[:]), nil
}

// uniqueTools removes tools with the name of an earlier one, and sets names.
func uniqueTools(hs *handshake) []wire.Tool {
	seen := make(map[string]bool, len(hs.tools))
	hs.names = seen
	return slices.DeleteFunc(hs.tools, func(t wire.Tool) bool {
		if seen[t.Own] {
			hs.problems = append(hs.problems, wire.Diagnostic{Level: "warn", Code: "bad_tool",
				Message: fmt.Sprintf("a second tool named %q is left out", t.Own)})
			return true
		}
		seen[t.Own] = true
		return false
	})
}

// undeclared compares the tools that the extension serves with those that its manifest declares.
func undeclared(w *workload, hs *handshake) []wire.Diagnostic {
	declared := w.declared.Tools
	if slices.Contains(declared, "*") || w.announce.Parent != "" {
		return nil
	}
	var out []wire.Diagnostic
	warn := func(format, name string) {
		if len(out) < 20 {
			out = append(out, wire.Diagnostic{Level: "warn", Code: "undeclared", Message: fmt.Sprintf(format, name)})
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

// appendMCP appends the members of an MCP server's result that the bridge passes on unchanged.
func appendMCP(b *bytes.Buffer, raw json.RawMessage) error {
	return jsonrpc.Each(raw, func(key, value []byte) bool {
		switch string(key) {
		case "protocolVersion", "capabilities", "serverInfo", "instructions":
			fmt.Fprintf(b, `,"%s":%s`, key, value)
		}
		return true
	})
}
