package clients

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// member is a server as an .mcp.json of an extension has it.
type member struct {
	Type             string            `json:"type,omitempty"`
	Command          string            `json:"command,omitempty"`
	Args             []string          `json:"args,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	Cwd              string            `json:"cwd,omitempty"`
	URL              string            `json:"url,omitempty"`
	Headers          map[string]string `json:"headers,omitempty"`
	HandshakeTimeout string            `json:"handshake_timeout,omitempty"`
}

// equal reports whether two valid servers are the same. The type follows from the command or the URL, and not all clients
// write it.
func (m member) equal(o member) bool {
	for _, s := range []*member{&m, &o} {
		if s.Type = ""; len(s.Args) == 0 {
			s.Args = nil
		}
	}
	return reflect.DeepEqual(m, o)
}

// filters are the keys with which clients choose some of a server's tools.
var filters = []string{"disabledTools", "excludeTools", "includeTools", "enabledTools", "enabled_tools", "disabled_tools"}

// logins are the keys with which clients configure a login with OAuth, or a program that makes headers.
var logins = []string{"auth", "oauth", "headersHelper", "authProviderType", "oauth_resource"}

var errMesh = errors.New("it is the mesh's own entry")

// member converts a server. The error is the reason why that is not possible; notes are what the user should know.
func (s server) member() (m member, notes []string, err error) {
	if s.wrong != "" {
		return m, nil, errors.New(s.wrong)
	}
	raw := s.raw
	switch {
	case oursNamed(s.name, raw):
		return m, nil, errMesh
	case raw["disabled"] == true, raw["enabled"] == false:
		return m, nil, errors.New("it is disabled")
	case raw["envFile"] != nil:
		return m, nil, errors.New("it has an envFile; write its variables into env")
	}
	for _, key := range logins {
		object, _ := raw[key].(map[string]any)
		if raw[key] != nil && raw[key] != false && object["enabled"] != false {
			return m, nil, fmt.Errorf("it logs in (%s), which the mesh cannot do; keep it in the client", key)
		}
	}
	if m, err = s.fields(); err != nil {
		return m, nil, err
	}
	if m.Type == "" && m.Command == "" && strings.HasSuffix(strings.TrimSuffix(strings.SplitN(m.URL, "?", 2)[0], "/"), "/sse") {
		m.Type = "sse"
	}
	if strings.EqualFold(m.Type, "sse") {
		return m, nil, errors.New("SSE is not supported, because MCP has deprecated it; use the server's streamable HTTP endpoint")
	}
	var inputs []string
	replace := func(v string) string {
		out, used, wrong := s.source.placeholders(v)
		inputs = append(inputs, used...)
		err = errors.Join(err, wrong)
		return out
	}
	m.each(func(_ string, v *string) { *v = replace(*v) })
	for name, value := range m.Env { // the server replaces its own variables itself
		if value == "${"+name+"}" { // it is the client's, too, which replaces it in args
			continue
		}
		for i := range m.Args {
			m.Args[i] = strings.ReplaceAll(strings.ReplaceAll(m.Args[i], "$${"+name+"}", "${"+name+"}"), "${"+name+"}", "$${"+name+"}")
		}
	}
	for _, id := range inputs {
		if note := "set " + id + ", for which the client has a prompt, in the environment of the bridge"; !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	err = errors.Join(err, s.addCodexVariables(&m))
	notes = append(m.losses(raw), notes...)
	if m.Command != "" && s.source.Project != "" && !filepath.IsAbs(m.Cwd) && !strings.HasPrefix(m.Cwd, "${") && !strings.HasPrefix(m.Cwd, "~/") {
		m.Cwd = filepath.Join(s.source.Project, m.Cwd)
	}
	return m, notes, err
}

// losses are the notes on what of a client's entry the server does not have on the mesh.
func (m member) losses(raw map[string]any) (notes []string) {
	if m.URL != "" && len(m.Headers) == 0 && !isLoopback(m.URL) {
		notes = append(notes, "if it needs a login in the browser, keep it in the client: the mesh cannot log in")
	}
	some := filters
	if tools, ok := raw["tools"].([]any); ok && !(len(tools) == 1 && tools[0] == "*") { // Copilot
		some = append(slices.Clone(filters), "tools")
	}
	for _, key := range some {
		if raw[key] != nil {
			notes = append(notes, key+" is not imported; use --only or --exclude of extctl mcp")
		}
	}
	return notes
}

// isLoopback reports whether a URL is that of a server on this host.
func isLoopback(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback())
}

// fields reads the keys of all clients.
func (s server) fields() (m member, err error) {
	raw := s.raw
	m = member{
		Type: cmp.Or(str(raw, "type"), str(raw, "transport")), Command: str(raw, "command"), Cwd: str(raw, "cwd"),
		URL: str(raw, "httpUrl", "serverUrl", "url"),
	}
	if m.Args, err = texts(raw, "args"); err != nil {
		return m, err
	}
	switch command := raw["command"].(type) {
	case []any: // opencode
		words, err := texts(raw, "command")
		if err != nil || len(words) == 0 {
			return m, errors.New("command is not a list of words")
		}
		m.Command, m.Args = words[0], append(words[1:], m.Args...)
	case map[string]any: // earlier versions of Zed
		m.Command = str(command, "path")
		if m.Args, err = texts(command, "args"); err != nil {
			return m, err
		}
		raw = command
	}
	for _, key := range []string{"env", "environment"} {
		env, err := textMap(raw, key)
		if err != nil {
			return m, err
		}
		if len(env) > 0 {
			m.Env = env
		}
	}
	for _, key := range []string{"headers", "http_headers"} {
		headers, err := textMap(s.raw, key)
		if err != nil {
			return m, err
		}
		if len(headers) > 0 {
			m.Headers = headers
		}
	}
	if secs, ok := text(s.raw["startup_timeout_sec"]); ok {
		if d, err := time.ParseDuration(secs + "s"); err == nil && d > 0 {
			m.HandshakeTimeout = min(d, manifest.MaxHandshakeTimeout).String()
		}
	}
	if m.Command == "" && m.URL == "" {
		return m, errors.New("it has neither a command nor a URL")
	}
	return m, nil
}

// addCodexVariables adds what Codex takes from its environment.
func (s server) addCodexVariables(m *member) error {
	headers, err := textMap(s.raw, "env_http_headers")
	if err != nil {
		return err
	}
	for name, variable := range headers {
		headers[name] = "${" + variable + "}"
	}
	if name := str(s.raw, "bearer_token_env_var"); name != "" {
		headers["Authorization"] = "Bearer ${" + name + "}"
	}
	if len(headers) > 0 && m.Headers == nil {
		m.Headers = map[string]string{}
	}
	maps.Copy(m.Headers, headers)
	names, err := texts(s.raw, "env_vars")
	for _, name := range names {
		if m.Env == nil {
			m.Env = map[string]string{}
		}
		if m.Env[name] == "" {
			m.Env[name] = "${" + name + "}"
		}
	}
	return err
}

// each calls f for all values that may have placeholders, with a name for each; their order is fixed.
func (m *member) each(f func(name string, v *string)) {
	f("command", &m.Command)
	for i := range m.Args {
		f(fmt.Sprintf("arg%d", i+1), &m.Args[i])
	}
	f("cwd", &m.Cwd)
	f("url", &m.URL)
	for _, all := range []map[string]string{m.Env, m.Headers} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			v := all[name]
			f(name, &v)
			all[name] = v
		}
	}
}

var (
	placeholder = regexp.MustCompile(`\$\{([^{}]*)\}`)
	opencodeRef = regexp.MustCompile(`\{(env|file):([^{}]*)\}`)
	shellRef    = regexp.MustCompile(`\$([A-Z_][A-Z0-9_]*)`)
	variable    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?$`)
	notInName   = regexp.MustCompile(`[^A-Z0-9_]+`)
)

// placeholders converts a client's placeholders to a manifest's. It returns the variables that take the place of prompts.
func (s *Source) placeholders(v string) (out string, prompts []string, err error) {
	switch {
	case s.client.literal:
		return strings.ReplaceAll(v, "${", "$${"), nil, nil
	case s.client.Name == "opencode":
		v = opencodeRef.ReplaceAllStringFunc(strings.ReplaceAll(v, "${", "$${"), func(ref string) string {
			if path, ok := strings.CutPrefix(ref, "{file:"); ok && !filepath.IsAbs(strings.TrimSuffix(path, "}")) {
				err = fmt.Errorf("%s: only opencode knows the directory of this file; write an absolute path", ref)
			}
			ref = "${" + ref[1:]
			return strings.Replace(ref, "${env:", "${", 1)
		})
		return v, nil, err
	case s.client.Name == "gemini":
		v = shellRef.ReplaceAllString(v, "$${$1}")
	}
	out = placeholder.ReplaceAllStringFunc(v, func(ref string) string {
		inner := ref[2 : len(ref)-1]
		kind, id, _ := strings.Cut(inner, ":")
		switch {
		case kind == "input" && id != "":
			name := notInName.ReplaceAllString(strings.ToUpper(id), "_")
			if name[0] >= '0' && name[0] <= '9' {
				name = "_" + name
			}
			prompts = append(prompts, name)
			return "${" + name + "}"
		case inner == "userHome":
			return "${HOME}"
		case inner == "pathSeparator", inner == "/":
			return string(filepath.Separator)
		case slices.Contains([]string{"workspaceFolder", "workspaceRoot", "CLAUDE_PROJECT_DIR", "CLAUDE_PROJECT_DIR:-.", "PWD"}, inner) && s.Project != "":
			return s.Project
		case inner == "workspaceFolderBasename" && s.Project != "":
			return filepath.Base(s.Project)
		case slices.Contains([]string{"workspaceFolder", "workspaceRoot", "workspaceFolderBasename", "CLAUDE_PROJECT_DIR"}, inner),
			strings.HasPrefix(inner, "CLAUDE_PLUGIN_"):
		case kind == "env" && variable.MatchString(id), variable.MatchString(inner), kind == "file" && path.IsAbs(id):
			return ref
		}
		if err == nil {
			err = fmt.Errorf("it uses %s, which only the client can replace", clip(ref))
		}
		return ref
	})
	return out, prompts, err
}

// clip shortens a placeholder for a message, and leaves out what may be a default.
func clip(ref string) string {
	if name, _, found := strings.Cut(ref, ":-"); found {
		ref = name + "}"
	}
	if len(ref) > 40 {
		ref = ref[:40] + "…"
	}
	return ref
}
