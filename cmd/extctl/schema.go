package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/manifest"
)

func (a *app) schemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema manifest",
		Short: "Print the JSON Schema of plugin.toml, for editors",
		Long: `Print the JSON Schema (draft-07) of plugin.toml, with which editors complete and check manifests.

With Even Better TOML or taplo: save it as plugin.schema.json, and begin the manifest with the comment

    #:schema ./plugin.schema.json`,
		Example:   "  extctl schema manifest > plugin.schema.json",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []cobra.Completion{"manifest"},
		RunE: func(*cobra.Command, []string) error {
			schema, err := manifest.Schema()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					header
					Schema json.RawMessage `json:"schema"`
				}{Schema: schema})
			}
			_, err = a.stdout.Write(schema)
			return err
		},
	}
}
