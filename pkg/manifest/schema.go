package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/extmesh/extmesh/internal/wire"
)

const (
	// semverPattern is semver.org's recommended pattern.
	semverPattern   = `^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`
	durationPattern = `^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	prefixPattern   = `^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+){0,7}$`
	urlPattern      = `^([hH][tT][tT][pP][sS]?://[^\s#]+|[\s\S]*\$\{[\s\S]*)$` // or any text with a placeholder
	notBlank        = `\S`
)

// Schema returns the JSON Schema (draft-07, which editors' TOML plugins support) of plugin.toml, generated from the
// types and extended with the rules that a schema can express; plugin.schema.json is its output. It accepts every
// manifest that Parse accepts, and some more: only Parse checks rules that depend on the host, on the order of two
// keys or on a sidecar. The same version of the package always returns the same bytes.
func Schema() ([]byte, error) {
	s, err := schema()
	if err != nil {
		return nil, fmt.Errorf("schema of the manifest: %w", err)
	}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("schema of the manifest: %w", err)
	}
	return append(out, '\n'), nil
}

func schema() (*jsonschema.Schema, error) {
	s, err := jsonschema.For[Manifest](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		// A TOML value is never null, which the generator would allow for slices.
		reflect.TypeFor[[]string]():      {Type: "array", Items: &jsonschema.Schema{Type: "string"}},
		reflect.TypeFor[TransportType](): enum(Stdio, NATS, HTTP),
		reflect.TypeFor[Dialect]():       enum(Auto, Ext, MCP),
		reflect.TypeFor[ServerType]():    enum(ServerStdio, ServerStreamableHTTP),
		reflect.TypeFor[time.Duration](): {Type: "string", Pattern: durationPattern},
	}})
	if err != nil {
		return nil, err
	}
	s.Schema = "http://json-schema.org/draft-07/schema#"
	s.Title = "plugin.toml"
	s.Description = "The manifest of an extension of extmesh."
	pluginRules(s.Properties["plugin"])
	capabilityRules(s)
	transportRules(s.Properties["transport"])
	each(s.Properties["requires"].Properties["bins"], notBlank)
	each(s.Properties["requires"].Properties["env"], `^[^\s=]+$`)
	for _, p := range s.Properties["meta"].Properties {
		p.MaxLength = jsonschema.Ptr(maxLabel)
	}
	servers := s.Properties["mcp_servers"]
	servers.MaxProperties = jsonschema.Ptr(maxServers)
	servers.PropertyNames = id(maxServerName)
	servers.PropertyNames.Not = enum("rpc", "cancel", "ack", "event")
	serverRules(servers.AdditionalProperties)
	return s, nil
}

func pluginRules(s *jsonschema.Schema) {
	p := s.Properties
	syntax := id(MaxID)
	p["id"].Pattern, p["id"].MaxLength, p["id"].Not = syntax.Pattern, syntax.MaxLength, syntax.Not
	for _, key := range []string{"version", "min_agent_version"} {
		p[key].Pattern, p[key].MaxLength = semverPattern, jsonschema.Ptr(maxVersion)
	}
	p["name"].MaxLength = jsonschema.Ptr(maxLabel)
	p["description"].MaxLength = jsonschema.Ptr(maxDescription)
	p["priority"].Default = json.RawMessage("0")
}

// capabilityRules adds that an extension with a transport needs capabilities, and that tool names follow MCP's rule
// only with its dialect.
func capabilityRules(s *jsonschema.Schema) {
	p := s.Properties["capabilities"].Properties
	var some []*jsonschema.Schema
	for _, key := range []string{"tools", "hooks", "channels", "providers"} {
		p[key].UniqueItems = true
		some = append(some, &jsonschema.Schema{
			Required:   []string{key},
			Properties: map[string]*jsonschema.Schema{key: {MinItems: jsonschema.Ptr(1)}},
		})
	}
	plain := &jsonschema.Schema{Type: "string", Pattern: capabilityPattern, MaxLength: jsonschema.Ptr(MaxID)}
	p["channels"].Items, p["providers"].Items = plain, plain.CloneSchemas()
	// Other hooks are valid; the enum is for completion.
	p["hooks"].Items = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{enum(hooks...), plain.CloneSchemas()}}
	p["tools"].Items = &jsonschema.Schema{Type: "string", Pattern: `^(\*|[A-Za-z0-9_.-]{1,128})$`}
	isMCP := under("transport", &jsonschema.Schema{
		Required:   []string{"dialect"},
		Properties: map[string]*jsonschema.Schema{"dialect": exactly(string(MCP))},
	})
	plainTools := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"tools": {Items: plain.CloneSchemas()}}}
	s.AllOf = []*jsonschema.Schema{
		{If: isMCP, Else: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"capabilities": plainTools}}},
		{If: &jsonschema.Schema{Required: []string{"transport"}}, Then: under("capabilities", &jsonschema.Schema{AnyOf: some})},
	}
}

func transportRules(s *jsonschema.Schema) {
	p := s.Properties
	p["command"].Pattern = notBlank
	p["env"].PropertyNames = &jsonschema.Schema{Pattern: `^[^\s=]+$`}
	p["headers"].PropertyNames = &jsonschema.Schema{Pattern: headerPattern}
	p["dialect"].Default = json.RawMessage(`"auto"`)
	p["subject_prefix"].Pattern = prefixPattern
	p["subject_prefix"].MaxLength = jsonschema.Ptr(maxSubjectPrefix)
	p["url"].Pattern = urlPattern
	tagged(s, "kind", fields, map[string]string{"stdio": "command", "nats": "", "http": "url"})
}

func serverRules(s *jsonschema.Schema) {
	p := s.Properties
	p["command"].Pattern = notBlank
	p["cwd"].Pattern = notBlank
	p["env"].PropertyNames = &jsonschema.Schema{Pattern: `^[^\s=]+$`}
	p["headers"].PropertyNames = &jsonschema.Schema{Pattern: headerPattern}
	p["url"].Pattern = urlPattern
	tagged(s, "transport", serverFields, map[string]string{"stdio": "command", "streamable_http": "url"})
	s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Required: []string{"command"}}, &jsonschema.Schema{Required: []string{"url"}})
}

// tagged makes s a union: type, or its alias, decides which fields are allowed and which are required.
func tagged(s *jsonschema.Schema, alias string, fields []field, required map[string]string) {
	s.Properties[alias] = s.Properties["type"].CloneSchemas()
	s.Properties[alias].Description = "Another name for type."
	s.PropertyOrder = slices.Insert(s.PropertyOrder, 1, alias)
	s.Required = nil
	s.AnyOf = []*jsonschema.Schema{{Required: []string{"type"}}, {Required: []string{alias}}}
	for _, v := range s.Properties["type"].Enum {
		kind, _ := v.(string)
		then := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{
			"type": exactly(kind), alias: exactly(kind),
		}}
		if r := required[kind]; r != "" {
			then.Required = []string{r}
		}
		for _, f := range fields {
			if !f.belongs(kind) {
				then.Properties[f.key] = &jsonschema.Schema{Not: &jsonschema.Schema{}}
			}
		}
		s.AllOf = append(s.AllOf, &jsonschema.Schema{Then: then, If: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Required: []string{"type"}, Properties: map[string]*jsonschema.Schema{"type": exactly(kind)}},
			{Required: []string{alias}, Properties: map[string]*jsonschema.Schema{alias: exactly(kind)}},
		}}})
	}
}

func id(limit int) *jsonschema.Schema {
	return &jsonschema.Schema{
		Pattern: idPattern, MaxLength: jsonschema.Ptr(limit), Not: enum(wire.ReservedIDs...),
	}
}

func enum[S ~string](values ...S) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

func exactly(v string) *jsonschema.Schema {
	return &jsonschema.Schema{Const: jsonschema.Ptr[any](v)}
}

// under returns the schema of a table that has key, with a value that matches s.
func under(key string, s *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Required: []string{key}, Properties: map[string]*jsonschema.Schema{key: s}}
}

func each(list *jsonschema.Schema, pattern string) { list.Items.Pattern = pattern }
