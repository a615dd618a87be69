package wire

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/plainjson"
)

// The bounds of what one extension may offer.
const (
	MaxTools       = 10_000
	MaxHooks       = 100
	MaxOwnName     = 256      // bytes of a tool's own name
	MaxDescription = 64 << 10 // bytes of a tool's description
	MaxDescriptor  = 1 << 20  // bytes of a tool's descriptor
	maxProblems    = 20
	maxProblem     = 1 << 10 // bytes of one
)

// EmptySchema is the input schema of a tool that gives none.
var EmptySchema = json.RawMessage(`{"type":"object"}`)

// Handshake is what an extension answered to initialize.
type Handshake struct {
	ServerVersion string       // native server_version, else MCP's serverInfo.version
	Tools         []Tool       // in the extension's order; Name is empty, Description as given
	Hooks         []string     // sorted, each once
	Protocol      string       // MCP's protocolVersion; "" for the native dialect
	Server        *Server      // what an MCP server declared; nil for the native dialect
	Problems      []Diagnostic // tools and hooks that were left out, with the reasons, after the problems in the answer itself; at most 20
}

// ParseHandshake reads the result of initialize, in either dialect: native {server_version, tools, hooks}, MCP
// {protocolVersion, capabilities, serverInfo, …}, or the answer of a bridge, which has both, and diagnostics about its
// child. Tools that are not valid (see ParseTools) are left out with a problem; a result that is not an object, or has more
// than MaxTools tools, is an error.
func ParseHandshake(result json.RawMessage) (Handshake, error) {
	var r struct {
		ServerVersion   string          `json:"server_version"`
		ProtocolVersion string          `json:"protocolVersion"`
		ServerInfo      json.RawMessage `json:"serverInfo"`
		Capabilities    json.RawMessage `json:"capabilities"`
		Instructions    json.RawMessage `json:"instructions"`
		Tools           json.RawMessage `json:"tools"`
		Hooks           json.RawMessage `json:"hooks"`
		Lists           json.RawMessage `json:"lists"`
		Diagnostics     json.RawMessage `json:"diagnostics"`
	}
	if b := bytes.TrimSpace(result); len(b) == 0 || b[0] != '{' {
		return Handshake{}, errors.New("the result of initialize is not an object")
	}
	rest, tools, err := SplitTools(result)
	if err == nil {
		err = json.Unmarshal(rest, &r)
	}
	if err != nil {
		return Handshake{}, fmt.Errorf("the result of initialize: %w", err)
	}
	if tools != nil {
		r.Tools = tools
	}
	h := Handshake{ServerVersion: r.ServerVersion, Protocol: r.ProtocolVersion}
	if r.ProtocolVersion != "" {
		h.Server = newServer(r.ProtocolVersion, r.ServerInfo, r.Capabilities, r.Instructions)
		h.Server.Lists = parseLists(r.Lists)
		h.ServerVersion = cmp.Or(h.ServerVersion, h.Server.Version())
	}
	if t := bytes.TrimSpace(r.Tools); len(t) > 0 && !bytes.Equal(t, []byte("null")) {
		if h.Tools, h.Problems, err = ParseTools(t); err != nil {
			return Handshake{}, fmt.Errorf("the result of initialize: %w", err)
		}
	}
	h.Problems = append(ownProblems(r.Diagnostics), h.Problems...)
	h.Problems = h.Problems[:min(len(h.Problems), maxProblems)]
	hooks, err := elements(r.Hooks, 10*MaxHooks)
	if err != nil {
		return Handshake{}, fmt.Errorf("the result of initialize: hooks: %w", err)
	}
	for _, raw := range hooks {
		name, err := hookName(raw)
		switch {
		case err != nil:
			h.Problems = problem(h.Problems, "bad_hook", "%v", err)
		case len(h.Hooks) == MaxHooks:
			h.Problems = problem(h.Problems, "bad_hook", "more than %d hooks", MaxHooks)
		default:
			h.Hooks = append(h.Hooks, name)
		}
	}
	slices.Sort(h.Hooks)
	h.Hooks = slices.Compact(h.Hooks)
	return h, nil
}

// EncodeSpec returns s as a line of JSON. It does not check the members of the tools again, whose grammar ParseTools and
// DecodeTool have checked, as encoding/json would: they are most of what a registry writes.
func EncodeSpec(s *Spec) ([]byte, error) {
	if len(s.Tools) == 0 {
		return plainjson.Marshal(s)
	}
	frame := *s
	frame.Tools = []Tool{}
	rest, err := plainjson.Marshal(&frame)
	if err != nil {
		return nil, err
	}
	at, _ := jsonrpc.Member(rest, "tools")
	size := len(rest)
	for _, t := range s.Tools {
		size += ToolSize(t) + len(t.Name)
	}
	text := append(append(make([]byte, 0, size), rest[:at.From]...), '[')
	for i := range s.Tools {
		if i > 0 {
			text = append(text, ',')
		}
		text = s.Tools[i].appendJSON(text)
	}
	text = append(append(text, ']'), rest[at.To:]...)
	if bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, '\r') < 0 {
		return text, nil
	}
	var line bytes.Buffer
	err = json.Compact(&line, text)
	return line.Bytes(), err
}

// SplitTools returns a copy of an object without its member tools, and the value of this member; nil if it is missing. The
// tools are most of a handshake or a spec: nothing is decoded.
func SplitTools(object []byte) (rest, tools []byte, err error) {
	rest = []byte{'{'}
	err = jsonrpc.Each(object, func(key, value []byte) bool {
		if string(key) == "tools" {
			tools = value
			return true
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(append(rest, '"'), key...), `":`...), value...)
		return true
	})
	return append(rest, '}'), tools, err
}

// Server is what an MCP server declared in its answer to initialize.
type Server struct {
	ProtocolVersion string          `json:"protocol_version"`
	Info            json.RawMessage `json:"info,omitempty"`         // serverInfo, with its name and version
	Capabilities    json.RawMessage `json:"capabilities,omitempty"` // what it offers besides tools
	Instructions    string          `json:"instructions,omitempty"` // for the model
	Lists           Lists           `json:"lists,omitzero"`
}

// Lists describes the lists of an MCP server other than its tools. They are not in the catalog: the extension is sent
// prompts/list and so on. A list that the server does not have, or that could not be read, is nil.
type Lists struct {
	Prompts   *Listing `json:"prompts,omitempty"`
	Resources *Listing `json:"resources,omitempty"`
	Templates *Listing `json:"templates,omitempty"` // of resources
}

// Listing describes one list. Digest is ListDigest of the response to its request.
type Listing struct {
	Count  int    `json:"count"`
	Digest string `json:"digest"`
}

// parseLists reads the lists in an answer of a bridge. Anything else is ignored.
func parseLists(raw json.RawMessage) (l Lists) {
	if len(raw) == 0 || json.Unmarshal(raw, &l) != nil {
		return Lists{}
	}
	for _, one := range []**Listing{&l.Prompts, &l.Resources, &l.Templates} {
		if *one != nil && ((*one).Count < 0 || len((*one).Digest) > maxServerVersion) {
			*one = nil
		}
	}
	return l
}

// CodeBadList is the code of a Diagnostic about a list of prompts, resources or templates.
const CodeBadList = "bad_list"

// The bounds of what is kept of a Server, in bytes.
const (
	maxServerVersion = 64
	maxServerObject  = 4 << 10
	maxInstructions  = 8 << 10
)

// newServer keeps what is valid and within its bounds. Longer instructions are cut.
func newServer(version string, info, capabilities, instructions json.RawMessage) *Server {
	object := func(raw json.RawMessage) json.RawMessage {
		var compact bytes.Buffer
		if len(raw) == 0 || raw[0] != '{' || len(raw) > maxServerObject || json.Compact(&compact, raw) != nil {
			return nil
		}
		return compact.Bytes()
	}
	s := &Server{ProtocolVersion: strings.ToValidUTF8(version[:min(len(version), maxServerVersion)], ""),
		Info: object(info), Capabilities: object(capabilities)}
	if json.Unmarshal(instructions, &s.Instructions) == nil && len(s.Instructions) > maxInstructions {
		s.Instructions = strings.ToValidUTF8(s.Instructions[:maxInstructions-len("…")], "") + "…"
	}
	return s
}

// Name returns the name in serverInfo, and Version the version; both may be empty.
func (s *Server) Name() string    { return s.info().Name }
func (s *Server) Version() string { return s.info().Version }

func (s *Server) info() (i struct{ Name, Version string }) {
	_ = json.Unmarshal(s.Info, &i) // a member of another type leaves the rest
	return i
}

// Offers reports whether the server declared a capability, such as "prompts" or "resources".
func (s *Server) Offers(capability string) bool {
	at, ok := jsonrpc.Member(s.Capabilities, capability)
	return ok && string(at.In(s.Capabilities)) != "null"
}

// ownProblems reads the problems in an answer: a bridge reports what it found out about its child. Anything but a list of
// diagnostics is ignored.
func ownProblems(raw json.RawMessage) (out []Diagnostic) {
	list, err := elements(raw, 50*maxProblems)
	if err != nil {
		return nil
	}
	for _, one := range list {
		var d Diagnostic
		if json.Unmarshal(one, &d) != nil {
			return nil
		}
		if d.Code == "" || d.Message == "" || len(d.Code) > 64 || len(out) == maxProblems {
			continue
		}
		if d.Level != "error" && d.Level != "info" {
			d.Level = "warn"
		}
		d.Message = strings.ToValidUTF8(d.Message[:min(len(d.Message), maxProblem)], "")
		out = append(out, d)
	}
	return out
}

// elements decodes a JSON array, or the first elements of it, one more than most: 60 MB of [1,1,1,… would take 1 GB. Nothing
// and null are an empty one.
func elements(array json.RawMessage, most int) (out []json.RawMessage, err error) {
	array = bytes.TrimSpace(array)
	if len(array) == 0 {
		return nil, nil
	}
	if array[0] != '[' {
		return nil, json.Unmarshal(array, &out) // null, or an error that names the type
	}
	err = jsonrpc.Elements(array, func(element []byte) bool {
		out = append(out, bytes.Clone(element))
		return len(out) <= most
	})
	return out, err
}

// hookName reads a hook: a name, or an object with a name.
func hookName(raw json.RawMessage) (string, error) {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		var o struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &o) != nil {
			return "", fmt.Errorf("a hook is neither a name nor an object with one: %.80s", raw)
		}
		name = o.Name
	}
	if err := checkOwnName(name); err != nil {
		return "", fmt.Errorf("hook: %w", err)
	}
	return name, nil
}

// ParseTools reads a list of tool descriptors, native (input_schema) or MCP (inputSchema). The other members of a descriptor
// are not changed. A descriptor that is not an object, has more than MaxDescriptor bytes or no usable name, and the second
// tool with the same name are left out with a problem; a schema that is not an object is replaced by EmptySchema. More than
// MaxTools descriptors are an error.
func ParseTools(list json.RawMessage) (tools []Tool, problems []Diagnostic, err error) {
	if len(list) == 0 {
		return nil, nil, errors.New(`there is no list of tools: the result has no "tools"`)
	}
	raw, err := elements(list, MaxTools)
	if err != nil {
		return nil, nil, fmt.Errorf("the list of tools: %w", err)
	}
	if len(raw) > MaxTools {
		return nil, nil, fmt.Errorf("the number of tools is over the limit of %d", MaxTools)
	}
	seen := make(map[string]bool, len(raw))
	for n, d := range raw {
		t, notes, err := parseTool(d)
		if err == nil && seen[t.Own] {
			err = fmt.Errorf("a second tool named %q", t.Own)
		}
		if err != nil {
			problems = problem(problems, "bad_tool", "tool %d is left out: %v", n, err)
			continue
		}
		for _, note := range notes {
			problems = problem(problems, "bad_tool", "tool %s: %s", t.Own, note)
		}
		seen[t.Own] = true
		tools = append(tools, t)
	}
	return tools, problems, nil
}

func parseTool(d json.RawMessage) (t Tool, notes []string, err error) {
	if len(d) > MaxDescriptor {
		return t, nil, fmt.Errorf("its descriptor of %d bytes is over the limit of %d", len(d), MaxDescriptor)
	}
	members, err := Members(d)
	if err != nil {
		return t, nil, err
	}
	var native, mcp json.RawMessage
	for _, m := range members {
		switch m.Key {
		case "name":
			t.Own, err = decodeString(m.Value, t.Own)
		case "description":
			text, err := decodeString(m.Value, t.Description)
			if t.Description = text; err != nil {
				notes = append(notes, "its description is not a string and is left out")
			}
		case "input_schema":
			native = m.Value
		case "inputSchema":
			mcp = m.Value
		case "tool":
			notes = append(notes, `its member "tool" is left out: the catalog uses that key itself`)
		default:
			t.Extra = append(t.Extra, m)
		}
		if err != nil {
			return t, nil, fmt.Errorf("its name is not a string: %.80s", m.Value)
		}
	}
	if len(t.Description) > MaxDescription {
		t.Description = strings.ToValidUTF8(t.Description[:MaxDescription], "")
		notes = append(notes, fmt.Sprintf("its description is cut at %d bytes", MaxDescription))
	}
	t.InputSchema = native
	if len(native) == 0 || string(native) == "null" {
		t.InputSchema = mcp
	}
	if len(t.InputSchema) == 0 || string(t.InputSchema) == "null" {
		t.InputSchema = EmptySchema
	}
	if t.InputSchema[0] != '{' {
		t.InputSchema = EmptySchema
		notes = append(notes, `its input schema is not an object and is replaced by {"type":"object"}`)
	}
	return t, notes, checkOwnName(t.Own)
}

func checkOwnName(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) > MaxOwnName:
		return fmt.Errorf("its name of %d bytes is over the limit of %d", len(name), MaxOwnName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("its name %.80q has control characters", name)
	}
	return nil
}

func problem(to []Diagnostic, code, format string, args ...any) []Diagnostic {
	if len(to) >= maxProblems {
		return to
	}
	return append(to, Diagnostic{Level: "warn", Code: code, Message: fmt.Sprintf(format, args...)})
}

// HandshakeHash is the handshake_hash of an announce (docs/protocol.md, "Announce"): the SHA-256, in lower-case
// hex, of {"hooks":[…],"tools":[…]} without white space, hooks and tools sorted by name, a tool being
// {name, description, input_schema} and the descriptor's other members. The keys of every object are sorted,
// numbers stay the literals they were, and strings are escaped as little as JSON allows. Registered names and
// the description's prefix are not part of it.
func HandshakeHash(tools []Tool, hooks []string) (string, error) {
	sorted := slices.SortedFunc(slices.Values(tools), func(a, b Tool) int { return cmp.Compare(a.Own, b.Own) })
	h := slices.Sorted(slices.Values(hooks))
	if h == nil {
		h = []string{}
	}
	text, err := plainjson.Marshal(h)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, `{"hooks":%s,"tools":[`, text)
	for n, t := range sorted { // one after the other, because the decoded form can be much larger than the text
		o := map[string]any{"name": t.Own, "description": t.Description}
		members := append([]Member{{"input_schema", t.InputSchema}}, t.Extra...)
		for _, m := range members {
			if len(m.Value) == 0 {
				m.Value = EmptySchema
			}
			dec := json.NewDecoder(bytes.NewReader(m.Value))
			dec.UseNumber()
			var v any
			if err := dec.Decode(&v); err != nil {
				return "", fmt.Errorf("tool %s: member %q: %w", t.Own, m.Key, err)
			}
			o[m.Key] = v
		}
		if text, err = plainjson.Marshal(o); err != nil { // keys come out sorted, a json.Number as it came
			return "", err
		}
		if n > 0 {
			hash.Write([]byte{','})
		}
		hash.Write(text)
	}
	hash.Write([]byte("]}"))
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// SkillEntry is one skill that a bridge has. Dir, the name of its directory, is its name in the catalog.
type SkillEntry struct {
	Name        string `json:"name"`
	Dir         string `json:"dir"`
	Description string `json:"description,omitempty"`
	Body        string `json:"body"`
}
