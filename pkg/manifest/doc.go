// Package manifest parses the files that describe an extension: plugin.toml, the .mcp.json that may be next to it,
// and SKILL.md. It is pure: its input is bytes, not directories, and it does not depend on NATS or on processes.
// Discovery finds the files, the gate checks the requirements, and the bridge runs the extensions.
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
// [Parse] returns a [Manifest], or all faults of the file at once, each with line, column, key, what is wrong and
// what would be right, like a compiler and unlike a decoder, which stops at the first fault. [Diagnostic] values
// print as path:line:column: level: key: message.
//
// An extension may bundle MCP servers in [mcp_servers.<name>] or, without such a table, in a sidecar. Each becomes a
// member, <id>.<name>. [Manifest.Members] returns members as manifests, so that a bridge runs them like extensions. A
// manifest with servers and neither [transport] nor capabilities is only their container ([Manifest.Container]).
//
// Values may contain placeholders such as ${TOKEN}, ${PORT:-8080} or ${file:/run/secrets/token}: in the transport's
// env, headers and url, and everywhere in an MCP server. [Manifest.Resolve] replaces them only when they are needed,
// so that a parsed manifest contains no secret; [Manifest.Variables] lists the variables that must be set for it.
//
// [ParseSkill] parses SKILL.md: instructions for an agent after a YAML front matter. [Schema] returns the JSON Schema
// of plugin.toml for editors, which is also in plugin.schema.json next to this file.
package manifest
