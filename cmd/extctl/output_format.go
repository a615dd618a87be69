package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
)

// outputFormat is how a verb prints its list; "" means a table.
type outputFormat string

const (
	formatTable outputFormat = "table"
	formatWide  outputFormat = "wide" // a table of which nothing is shortened
	formatJSON  outputFormat = "json"
	formatYAML  outputFormat = "yaml" // the JSON object in YAML
	formatName  outputFormat = "name" // one name per line
)

var outputFormats = []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML), string(formatName)}

func (f *outputFormat) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(f), "output", "o", "", "`FORMAT`: table, wide (a table of which nothing is shortened), json (as --json), yaml or name (default: EXTCTL_OUTPUT, or table)")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp)); err != nil { // the flag is defined above
		panic(err)
	}
}

// choose reads the default from the environment and checks the format. With json or yaml, errors have that format, too.
func (f *outputFormat) choose(a *app) error {
	source := "-o"
	if *f == "" {
		source, *f = "EXTCTL_OUTPUT", outputFormat(a.getenv("EXTCTL_OUTPUT"))
	}
	if a.json {
		*f = formatJSON
	}
	*f = cmp.Or(*f, formatTable)
	if !slices.Contains(outputFormats, string(*f)) {
		return usage("%s %q: want %s", source, string(*f), words.Or(outputFormats))
	}
	a.yaml = *f == formatYAML
	if a.yaml {
		*f = formatJSON
	}
	a.json = *f == formatJSON
	return nil
}

// printColumn prints one column of a table.
func printColumn(a *app, t *terminal.Table, column int) error {
	for _, row := range t.Rows {
		if _, err := fmt.Fprintln(a.stdout, row[column]); err != nil {
			return err
		}
	}
	return nil
}
