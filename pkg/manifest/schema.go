package manifest

import (
	_ "embed"
	"slices"
)

//go:embed plugin.schema.json
var schema []byte

// Schema returns the JSON Schema (draft-07, which editors' TOML plugins support) of plugin.toml. It accepts every manifest that
// Parse accepts, and some more: only Parse checks rules that depend on the host, on the order of two keys or on a sidecar.
func Schema() []byte { return slices.Clone(schema) }
