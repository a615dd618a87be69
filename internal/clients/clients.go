// Package clients reads and changes the files in which MCP clients, such as Claude Code, Cursor and VS Code, configure their
// servers. It puts one entry for the mesh into such a file, converts the servers of a file to an extension, and undoes both.
//
// The files belong to other programs and to their users: a change replaces the smallest possible span, keeps mode and owner, and
// is refused if the file has a form that cannot be changed in this way. A record of each change makes an exact undo possible. The
// record and the converted secrets are readable only by the user; no error and no text made here contains a secret's value.
package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
)

// Env is where the files of clients are.
type Env struct {
	Home   string              // the user's home directory
	Config string              // the user's directory for configuration, as os.UserConfigDir
	Dir    string              // the project's directory, absolute: the working directory
	State  string              // the directory for the records of changes; created if needed
	Getenv func(string) string // nil: os.Getenv
}

// Scope is which of a client's files is meant.
type Scope string

// The scopes.
const (
	User    Scope = "user"    // the user's own file, for all projects
	Project Scope = "project" // the file in the project's directory
)

// Client is an MCP client. Its fields are what its documentation says about its files.
type Client struct {
	Name  string // as users type it
	Title string // as its maker writes it
	Next  string // what makes a change effective

	key      string // the object or table with the servers
	user     string // the user's file: ~/ is the home directory, @/ the directory for configuration
	dirVar   string // a variable with another directory for the user's file
	project  string // the project's file, relative to its directory; "" if there is none
	shape    shape  // of an entry
	urlKey   string // the key of a server's URL; "" if the client only starts programs
	variable string // how a header refers to a variable; "" if it cannot
	names    int    // longest name of the server and a tool together, in bytes; 0: no limit
	literal  bool   // the client does not replace ${…} in values
}

// shape is the form of an entry.
type shape int

const (
	plain    shape = iota // command, args
	typed                 // the same and type: stdio or http
	codex                 // a TOML table
	zed                   // source: custom
	opencode              // command is a list of words; type: local or remote
)

// Clients are the supported clients, in the order of listings.
var Clients = []Client{
	{Name: "claude-code", Title: "Claude Code", key: "mcpServers", user: "~/.claude.json", dirVar: "CLAUDE_CONFIG_DIR", project: ".mcp.json",
		shape: typed, urlKey: "url", variable: "${%s}", names: 64 - len("mcp____"), Next: "start Claude Code again, or reconnect with /mcp"},
	{Name: "claude-desktop", Title: "Claude Desktop", key: "mcpServers", user: "@/Claude/claude_desktop_config.json", Next: "quit Claude Desktop and start it again"},
	{Name: "cursor", Title: "Cursor", key: "mcpServers", user: "~/.cursor/mcp.json", project: ".cursor/mcp.json", urlKey: "url", variable: "${env:%s}",
		names: 59, Next: "enable mesh in Cursor's settings, below MCP"},
	{Name: "vscode", Title: "VS Code", key: "servers", user: "@/Code/User/mcp.json", project: ".vscode/mcp.json", shape: typed, urlKey: "url", variable: "${env:%s}",
		Next: "start mesh in VS Code with MCP: List Servers"},
	{Name: "vscode-insiders", Title: "VS Code Insiders", key: "servers", user: "@/Code - Insiders/User/mcp.json", shape: typed, urlKey: "url", variable: "${env:%s}",
		Next: "start mesh in VS Code with MCP: List Servers"},
	{Name: "copilot-cli", Title: "Copilot CLI", key: "mcpServers", user: "~/.copilot/mcp-config.json", dirVar: "COPILOT_HOME", shape: typed, urlKey: "url", variable: "${%s}",
		Next: "start Copilot CLI again"},
	{Name: "codex", Title: "Codex", key: "mcp_servers", user: "~/.codex/config.toml", dirVar: "CODEX_HOME", project: ".codex/config.toml",
		shape: codex, urlKey: "url", variable: "%s", literal: true, Next: "start Codex again"},
	{Name: "gemini", Title: "Gemini CLI", key: "mcpServers", user: "~/.gemini/settings.json", project: ".gemini/settings.json", urlKey: "httpUrl", variable: "$%s",
		Next: "start Gemini CLI again"},
	{Name: "windsurf", Title: "Windsurf", key: "mcpServers", user: "~/.codeium/windsurf/mcp_config.json", urlKey: "serverUrl", variable: "${env:%s}",
		Next: "refresh the MCP servers in Windsurf"},
	{Name: "zed", Title: "Zed", key: "context_servers", user: "~/.config/zed/settings.json", project: ".zed/settings.json", shape: zed, urlKey: "url", literal: true,
		Next: "nothing; Zed reads the file when it changes"},
	{Name: "opencode", Title: "opencode", key: "mcp", user: "~/.config/opencode/opencode.json", project: "opencode.json", shape: opencode, urlKey: "url", variable: "{env:%s}", names: 64 - len("_"),
		Next: "start opencode again"},
}

// Find returns the client with a name.
func Find(name string) (Client, bool) {
	i := slices.IndexFunc(Clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{}, false
	}
	return Clients[i], true
}

// Names are the names of all clients.
func Names() (names []string) {
	for _, c := range Clients {
		names = append(names, c.Name)
	}
	return names
}

func (e Env) getenv(name string) string {
	if e.Getenv != nil {
		return e.Getenv(name)
	}
	return os.Getenv(name)
}

// packaged returns the directory of the settings of a client. The installer of Claude Desktop makes it a Windows package, which has
// a directory of its own instead of %APPDATA%.
func (e Env) packaged(c Client) string {
	if local := e.getenv("LOCALAPPDATA"); c.Name == "claude-desktop" && filepath.IsAbs(local) {
		if found, _ := filepath.Glob(filepath.Join(local, "Packages", "Claude_*", "LocalCache", "Roaming")); len(found) > 0 {
			return found[0]
		}
	}
	return e.Config
}

// Path returns the client's file; ok is false if the client has none in that scope.
func (e Env) Path(c Client, s Scope) (path string, ok bool) {
	if s == Project {
		return c.existing(filepath.Join(e.Dir, filepath.FromSlash(c.project))), c.project != ""
	}
	name := c.user
	if c.Name == "zed" && runtime.GOOS == "windows" {
		name = "@/Zed/settings.json"
	}
	if dir := e.getenv(c.dirVar); c.dirVar != "" && dir != "" {
		return filepath.Join(dir, filepath.Base(name)), true
	}
	if rest, ok := strings.CutPrefix(name, "@/"); ok {
		return filepath.Join(e.packaged(c), filepath.FromSlash(rest)), true
	}
	if rest, ok := strings.CutPrefix(name, "~/.config/"); ok && (c.shape == opencode || runtime.GOOS == "linux") {
		if dir := e.getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
			return c.existing(filepath.Join(dir, filepath.FromSlash(rest))), true
		}
	}
	return c.existing(filepath.Join(e.Home, filepath.FromSlash(strings.TrimPrefix(name, "~/")))), true
}

// existing returns the path of opencode's file with comments, if only that exists; otherwise path.
func (c Client) existing(path string) string {
	if c.shape != opencode {
		return path
	}
	if _, err := os.Stat(path); err != nil {
		if _, err := os.Stat(path + "c"); err == nil {
			return path + "c"
		}
	}
	return path
}

// Short returns a path as users write it.
func (e Env) Short(path string) string {
	for _, d := range []struct{ dir, name string }{{e.Dir, "."}, {e.Home, "~"}} {
		if rel, err := filepath.Rel(d.dir, path); d.dir != "" && err == nil && filepath.IsLocal(rel) {
			return d.name + string(filepath.Separator) + rel
		}
	}
	return path
}

// Entry is the mesh's entry in a client's file.
type Entry struct {
	Command  string   // extctl, absolute
	Args     []string // after mcp
	URL      string   // of an extctl mcp --http; instead of Command
	TokenVar string   // the variable with the bearer token for URL; may be empty
}

// entry is the mesh's entry in a client's file. The order of its fields is that of the members.
type entry struct {
	Type        string            `json:"type,omitempty"`
	Source      string            `json:"source,omitempty"`
	Command     any               `json:"command,omitempty"` // opencode: a list of words
	Args        []string          `json:"args,omitempty"`
	URL         string            `json:"url,omitempty"`
	HTTPURL     string            `json:"httpUrl,omitempty"`
	ServerURL   string            `json:"serverUrl,omitempty"`
	Tools       []string          `json:"tools,omitempty"`
	ToolTimeout int               `json:"tool_timeout_sec,omitempty"`
	Env         map[string]string `json:"env,omitzero"`
	Enabled     bool              `json:"enabled,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	TokenVar    string            `json:"bearer_token_env_var,omitempty"`
}

// nameLimit returns the flag that keeps the names of tools as short as the client needs them: it puts the server's name before
// each.
func (c Client) nameLimit(server string) []string {
	limit := max(c.names-len(server), wire.MinToolName)
	if c.names == 0 || limit >= wire.MaxToolName {
		return nil
	}
	return []string{"--name-limit", strconv.Itoa(limit)}
}

// entry returns the entry with a name as the client wants it.
func (c Client) entry(name string, e Entry) (out entry, err error) {
	remote := e.URL != ""
	switch {
	case !remote:
		out.Command, out.Args = e.Command, slices.Concat([]string{"mcp"}, c.nameLimit(name), e.Args)
	case c.urlKey == "":
		return out, fmt.Errorf("%s only starts servers and cannot use a URL", c.Title)
	case e.TokenVar == "":
	case c.variable == "":
		return out, fmt.Errorf("%s cannot take a token from a variable", c.Title)
	case c.shape == codex:
		out.TokenVar = e.TokenVar
	default:
		out.Headers = map[string]string{"Authorization": "Bearer " + fmt.Sprintf(c.variable, e.TokenVar)}
	}
	switch c.urlKey {
	case "url":
		out.URL = e.URL
	case "httpUrl":
		out.HTTPURL = e.URL
	case "serverUrl":
		out.ServerURL = e.URL
	}
	switch c.shape {
	case typed:
		if out.Type = "stdio"; remote {
			out.Type = "http"
		}
		if c.Name == "copilot-cli" {
			out.Tools = []string{"*"}
		}
	case codex:
		out.ToolTimeout = 300 // Codex's own limit of a call is one minute
	case zed:
		if out.Source = "custom"; !remote {
			out.Env = map[string]string{}
		}
	case opencode:
		if out.Type, out.Enabled = "remote", true; !remote {
			out.Type, out.Command, out.Args = "local", append([]string{e.Command}, out.Args...), nil
		}
	case plain:
	}
	return out, nil
}

// text formats the entry as it is written: JSON, or the lines of a TOML table.
func (c Client) text(name string, e Entry) (string, error) {
	entry, err := c.entry(name, e)
	if err != nil {
		return "", err
	}
	raw, err := plainjson.Marshal(entry)
	if err != nil || c.shape != codex {
		return string(raw), err
	}
	var b strings.Builder
	members, err := wire.Members(raw)
	for _, m := range members { // strings, lists of strings and numbers are the same in TOML
		fmt.Fprintf(&b, "%s = %s\n", m.Key, m.Value)
	}
	return b.String(), err
}

// set changes an entry of a client's file, and remove takes it out.
func (c Client) set(text string, path []string, entry string) (string, error) {
	if c.shape == codex {
		return document.AppendTOML(text, path, entry)
	}
	return document.SetJSON(text, path, json.RawMessage(entry))
}

func (c Client) remove(text string, path []string) (string, error) {
	if c.shape == codex {
		return document.RemoveTOML(text, path)
	}
	return document.RemoveJSON(text, path)
}

// parse decodes a client's file.
func (c Client) parse(text string) (map[string]any, error) {
	switch {
	case c.shape == codex:
		return document.ParseTOML(text)
	case strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")) == "":
		return map[string]any{}, nil
	}
	return document.ParseJSON(text)
}

// lookup returns the entry at a path of a tree, or nil.
func lookup(tree map[string]any, path []string) map[string]any {
	m := tree
	for _, name := range path {
		m, _ = m[name].(map[string]any)
	}
	return m
}

// ours reports whether an entry starts extctl mcp, or uses an extctl mcp --http of this machine.
func ours(entry map[string]any) bool {
	words := list(entry["args"])
	command, _ := entry["command"].(string)
	if line := list(entry["command"]); len(line) > 0 {
		command, words = line[0], line[1:]
	}
	base := command[strings.LastIndexAny(command, `/\`)+1:]
	if strings.TrimSuffix(base, ".exe") == "extctl" {
		return slices.Contains(words, "mcp")
	}
	for _, key := range []string{"url", "httpUrl", "serverUrl"} {
		if url, ok := entry[key].(string); ok {
			for _, local := range []string{"http://127.0.0.1:", "http://localhost:", "http://[::1]:"} {
				if rest, found := strings.CutPrefix(url, local); found {
					_, path, _ := strings.Cut(rest, "/")
					return path == "mcp" || strings.HasPrefix(path, "mcp/")
				}
			}
		}
	}
	return false
}

// oursNamed is ours for an entry that need not be the mesh's: other servers also have a URL of this machine.
func oursNamed(name string, entry map[string]any) bool {
	return ours(entry) && (entry["command"] != nil || name == "mesh")
}

// list returns the strings of a list.
func list(v any) (out []string) {
	all, _ := v.([]any)
	for _, item := range all {
		s, _ := item.(string)
		out = append(out, s)
	}
	return out
}
