package manifest_test

import (
	"fmt"

	"github.com/extmesh/extmesh/pkg/manifest"
)

func ExampleParse() {
	m, diags := manifest.Parse("plugin.toml", []byte(`
[plugin]
id = "weather"
version = "1.0.0"
[capabilities]
tools = ["get_weather"]
[transport]
type = "stdio"
command = "./weather"
`), manifest.Options{})
	fmt.Println(m.Plugin.ID, m.Transport.Type, m.Capabilities.Tools, diags)
	// Output: weather stdio [get_weather] []
}

// All faults are reported together, and the manifest is nil.
func ExampleParse_faults() {
	m, diags := manifest.Parse("weather/plugin.toml", []byte(`[plugin]
id = "Weather"
verison = "1.0.0"

[capabilities]
tools = ["get_weather", "get_weather"]

[transport]
type = "stdio"
url = "http://localhost"
`), manifest.Options{})
	fmt.Println(m == nil)
	for _, d := range diags {
		fmt.Println(d)
	}
	// Output:
	// true
	// weather/plugin.toml:1:2: error: plugin.version: missing; want strict semver, such as "1.0.0"
	// weather/plugin.toml:2:1: error: plugin.id: "Weather" is not a legal name; want a lower-case letter, then lower-case letters, digits, "_" or "-", at most 64 bytes, such as "weather"
	// weather/plugin.toml:3:1: error: plugin.verison: unknown key; did you mean version?
	// weather/plugin.toml:6:25: error: capabilities.tools[1]: "get_weather" is in the list already, at index 0; want each name once
	// weather/plugin.toml:8:2: error: transport.command: missing; want the program to run
	// weather/plugin.toml:10:1: error: transport.url: does not belong to type = "stdio" but to "http"; remove it or change type
}

// A manifest may contain only MCP servers; each becomes a member that is run like an extension.
func ExampleManifest_Members() {
	m, _ := manifest.Parse("google/plugin.toml", []byte(`
[plugin]
id = "google"
version = "1.0.0"

[mcp_servers.gmail]
type = "stdio"
command = "${EXTENSION_ROOT}/gmail"
env = { TOKEN = "${GMAIL_TOKEN}", REGION = "${REGION:-eu}" }
`), manifest.Options{})
	env := map[string]string{"GMAIL_TOKEN": "t0ken"}
	host := manifest.Expander{
		Root:      "/srv/google",
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}
	for _, member := range m.Members() {
		t, missing, err := member.Resolve(host)
		fmt.Println(member.Plugin.ID, member.Variables(), t.Command, t.Env, missing, err)
	}
	// Output: google.gmail [GMAIL_TOKEN] /srv/google/gmail map[REGION:eu TOKEN:t0ken] [] <nil>
}

func ExampleExpander_Expand() {
	e := manifest.Expander{
		Root:      "/srv/weather",
		LookupEnv: func(string) (string, bool) { return "", false },
	}
	fmt.Println(e.Expand("${EXTENSION_ROOT}/cache"))
	fmt.Println(e.Expand("http://localhost:${PORT:-8080}/"))
	fmt.Println(e.Expand("Bearer ${TOKEN}"))
	fmt.Println(e.Expand("$${TOKEN}"))
	// Output:
	// /srv/weather/cache [] <nil>
	// http://localhost:8080/ [] <nil>
	// Bearer  [TOKEN] <nil>
	// ${TOKEN} [] <nil>
}

func ExampleParseSidecar() {
	m, diags := manifest.ParseSidecar("google", "google/.mcp.json", []byte(`{
  "mcpServers": {
    "Gmail": {"command": "npx", "args": ["-y", "gmail-mcp"]},
    "drive": {"url": "https://drive.example/mcp"},
  }
}`), manifest.Options{})
	for _, member := range m.Members() {
		fmt.Println(member.Plugin.ID, member.Transport.Type)
	}
	fmt.Println(diags)
	// Output:
	// google.drive http
	// google.gmail stdio
	// [google/.mcp.json:3:5: info: mcpServers.Gmail: its name here is "gmail"]
}

func ExampleParseSkill() {
	s, diags := manifest.ParseSkill("greet/SKILL.md", []byte(`---
name: Greeting
description: How to greet a customer
requires:
  env: [CRM_TOKEN]
---
Say hello.
`))
	fmt.Printf("%s, needs %v: %q %v\n", s.Name, s.Requires.Env, s.Body, diags)
	// Output: Greeting, needs [CRM_TOKEN]: "Say hello.\n" []
}
