package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

// Source is a file with servers.
type Source struct {
	Path     string // "" for Text
	Label    string // for messages
	Text     string // the content, if it is not in a file
	Optional bool   // that it cannot be read is the reason why it is not imported, and not an error
	Project  string // the directory in which the client starts the servers; "" if it depends
	client   Client // zero if it is not known
	scope    Scope
	keys     [][]string
}

// IsProjects reports whether it is the file of a project, which a stranger may have written.
func (s *Source) IsProjects() bool { return s.scope == Project }

// files are a client's files, which need not exist. The project's file can be the user's, in the home directory.
func (e Env) files(c Client) (all []Source) {
	for _, scope := range []Scope{User, Project} {
		path, ok := e.Path(c, scope)
		if !ok || len(all) > 0 && all[0].Path == path {
			continue
		}
		s := Source{Path: path, Label: e.Short(path), scope: scope, client: c, keys: [][]string{{c.key}}}
		if scope == Project {
			s.Project = e.Dir
		}
		all = append(all, s)
	}
	return all
}

// Sources returns the files of a client: the user's, and that of the project.
func (e Env) Sources(c Client) (all []Source) {
	for _, s := range e.files(c) {
		f, err := readFile(s.Path)
		if err != nil || f.exists {
			all = append(all, s)
		}
		if c.Name == "claude-code" && s.scope == User && f.exists { // the same file has servers for single projects
			s.keys, s.Project = [][]string{{"projects", filepath.ToSlash(e.Dir), c.key}}, e.Dir
			s.Label += ", for " + e.Short(e.Dir)
			all = append(all, s)
		}
	}
	return all
}

// Source returns the source for any file. If it is one of a client's, it is treated as such.
func (e Env) Source(path string) Source {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	for _, c := range Clients {
		for _, s := range e.files(c) {
			if s.Path == path {
				return s
			}
		}
	}
	s := Source{Path: path, Label: e.Short(path)}
	dir := filepath.Dir(path)
	switch base := filepath.Base(dir); {
	case filepath.Base(path) == ".mcp.json" || filepath.Base(path) == "opencode.json":
		s.Project = dir
	case slices.Contains([]string{".cursor", ".vscode", ".gemini", ".zed", ".codex"}, base) && filepath.Dir(dir) != e.Home:
		s.Project = filepath.Dir(dir)
	}
	if filepath.Base(dir) == ".gemini" { // its variables have a form of their own
		s.client, _ = Find("gemini")
	}
	return s
}

// server is a server as it is configured in a client's file.
type server struct {
	source *Source
	path   []string // of the entry
	name   string
	raw    map[string]any
	wrong  string // why raw is nil
}

// servers returns the servers of a source, by name.
func (s *Source) servers() ([]server, error) {
	f := file{text: s.Text}
	if s.Path != "" {
		var err error
		if f, err = readFile(s.Path); err != nil {
			return nil, err
		}
		if !f.exists {
			return nil, fmt.Errorf("%s does not exist", s.Path)
		}
	}
	tree, err := s.parse(f.text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Label, err)
	}
	keys := s.keys
	if keys == nil {
		if keys = locate(tree); keys == nil {
			return nil, fmt.Errorf("%s has no servers; want an object such as mcpServers, servers, context_servers or mcp, or a table mcp_servers", s.Label)
		}
	}
	var out []server
	for _, key := range keys {
		all := lookup(tree, key)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			sv := server{source: s, path: append(slices.Clone(key), name), name: name}
			if sv.raw, _ = all[name].(map[string]any); sv.raw == nil {
				sv.wrong = "its entry is not an object"
			}
			out = append(out, sv)
		}
	}
	return out, nil
}

// parse decodes a source by its content, and chooses the rules of the client that has such files.
func (s *Source) parse(text string) (map[string]any, error) {
	if s.client.Name != "" {
		return s.client.parse(text)
	}
	body := strings.TrimSpace(strings.TrimPrefix(text, "\ufeff"))
	switch {
	case body == "":
		return nil, errors.New("it is empty")
	case strings.HasSuffix(s.Path, ".toml") || body[0] == '[' || body[0] == '#' || body[0] >= 'a' && body[0] <= 'z':
		s.client, _ = Find("codex")
		return document.ParseTOML(text)
	case body[0] == '"': // part of an object, as pages show it
		text = "{" + strings.TrimSuffix(body, ",") + "}"
	}
	tree, err := document.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	for key, name := range map[string]string{"context_servers": "zed", "mcp": "opencode"} {
		if _, ok := tree[key].(map[string]any); ok && tree["mcpServers"] == nil && lookup(tree, []string{key, "servers"}) == nil {
			s.client, _ = Find(name)
		}
	}
	return tree, nil
}

// locate finds the objects with servers in any client's file.
func locate(tree map[string]any) (keys [][]string) {
	for _, key := range [][]string{{"mcpServers"}, {"mcp_servers"}, {"mcp", "servers"}, {"servers"}, {"context_servers"}, {"mcp"}} {
		if lookup(tree, key) != nil {
			return [][]string{key}
		}
	}
	for _, v := range tree { // the inner object alone
		entry, _ := v.(map[string]any)
		if entry["command"] == nil && entry["url"] == nil && entry["httpUrl"] == nil && entry["serverUrl"] == nil {
			return nil
		}
	}
	if len(tree) == 0 {
		return nil
	}
	return [][]string{{}}
}

// text returns a scalar as it is written.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	}
	return "", false
}

// str returns the first of several keys that is a string.
func str(m map[string]any, keys ...string) string {
	for _, key := range keys {
		if s, ok := m[key].(string); ok {
			return s
		}
	}
	return ""
}

// texts returns a list of scalars.
func texts(m map[string]any, key string) ([]string, error) {
	all, ok := m[key].([]any)
	if !ok && m[key] != nil {
		return nil, fmt.Errorf("%s is not a list", key)
	}
	var out []string
	for _, v := range all {
		s, ok := text(v)
		if !ok {
			return nil, fmt.Errorf("%s has an item that is not a text", key)
		}
		out = append(out, s)
	}
	return out, nil
}

// textMap returns an object of scalars; nulls are left out.
func textMap(m map[string]any, key string) (map[string]string, error) {
	all, ok := m[key].(map[string]any)
	if !ok && m[key] != nil {
		return nil, fmt.Errorf("%s is not an object", key)
	}
	out := map[string]string{}
	for name, v := range all {
		if v == nil {
			continue
		}
		s, ok := text(v)
		if !ok {
			return nil, fmt.Errorf("%s.%s is not a text", key, name)
		}
		out[name] = s
	}
	return out, nil
}
