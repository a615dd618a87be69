package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/manifest"
)

func schemaCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of plugin.toml, for editors",
		Long: `Print the JSON Schema (draft-07) of plugin.toml. Editors use it to complete and check manifests.

With Even Better TOML or taplo: save it as plugin.schema.json, and begin the manifest with the comment

    #:schema ./plugin.schema.json`,
		Example: "  extctl schema > plugin.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text := manifest.Schema()
			if a.json {
				return a.printObject(member{"schema", json.RawMessage(text)})
			}
			_, err := a.stdout.Write(text)
			return err
		},
	}
}
