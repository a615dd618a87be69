// Package manifest reads what an extension says of itself before it is run: plugin.toml, the .mcp.json that may
// stand beside it, and SKILL.md. It is pure: it looks at bytes, not at directories, and knows nothing of NATS
// or processes. Discovery finds the files, the gate checks the requirements, the bridge runs what is left.
//
// A small manifest:
//
//	[plugin]
//	id = "weather"
//	version = "1.0.0"
//
//	[capabilities]
//	tools = ["get_weather"]
//
//	[transport]
//	type = "stdio"
//	command = "python3"
//	args = ["main.py"]
//
//	[requires]
//	bins = ["python3"]
//	env = ["WEATHER_TOKEN"]
//
// [Parse] returns a [Manifest], or every fault of the file at once, each with line, column, key, what is wrong
// and what would be right; in that it is like a compiler, and unlike a decoder, which stops at the first. Its
// [Diagnostic] values print as path:line:column: level: key: message.
//
// An extension may bundle MCP servers in [mcp_servers.<name>] or, if it has no such table, in a sidecar. Each
// becomes a member, <id>.<name>, and [Manifest.Members] presents members as manifests, so that whoever runs an
// extension runs a member the same way. A manifest with servers and neither [transport] nor capabilities is
// only their container ([Manifest.Container]).
//
// Values may hold placeholders such as ${TOKEN}, ${PORT:-8080} or ${file:/run/secrets/token}: in the
// transport's env, headers and url, and everywhere in an MCP server. They are replaced late, by
// [Manifest.Resolve], so that a parsed manifest holds no secret; [Manifest.Variables] lists the variables that
// must be set for it.
//
// [ParseSkill] reads SKILL.md: instructions for an agent below a YAML front matter. [Schema] is the JSON Schema
// of plugin.toml for editors; plugin.schema.json, beside this file, is its output.
package manifest
