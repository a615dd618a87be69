package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// schemas are the schemas that the command prints.
var schemas = []schemaJSON{{"manifest", "JSON Schema (draft-07) of plugin.toml, for completion and checks in editors"}}

type schemaJSON struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

func schemaCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [NAME]",
		Short: "Print the JSON Schema of plugin.toml, for editors",
		Long: `Print a schema by its name; without a name, list the schemas. "manifest" is the JSON Schema (draft-07) of
plugin.toml; editors use it to complete and check manifests.

With Even Better TOML or taplo: save it as plugin.schema.json, and begin the manifest with the comment

    #:schema ./plugin.schema.json`,
		Example:   "  extctl schema manifest > plugin.schema.json",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []cobra.Completion{"manifest"},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listSchemas(a)
			}
			return printSchemaNamed(a, args[0])
		},
	}
}

// listSchemas prints the names of the schemas.
func listSchemas(a *app) error {
	if a.json {
		return a.printObject(member{"schemas", schemas})
	}
	t := a.newTable("NAME", "DESCRIPTION")
	for _, s := range schemas {
		t.Add(s.Name, s.Description)
	}
	return t.Print(a.stdout)
}

func printSchemaNamed(a *app, name string) error {
	if name != schemas[0].Name {
		return daemon.UsageError{Err: fmt.Errorf("there is no schema %q; want manifest", name), Hint: "for example: extctl schema manifest"}
	}
	text := manifest.Schema()
	if a.json {
		return a.printObject(member{"schema", json.RawMessage(text)})
	}
	_, err := a.stdout.Write(text)
	return err
}
