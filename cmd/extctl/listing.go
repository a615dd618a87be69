package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// listing is what a verb prints that lists a part of the catalog.
type listing struct {
	revisionJSON
	name   string                   // of the list in the JSON object
	list   any                      // nil is printed as []
	tables func() []*terminal.Table // without --json; tables after the first are printed if they have rows
	notes  func() []string          // without --json, on stderr; may be nil

	shorten func([]*terminal.Table) (note string) // removes rows that a table of the usual format does not need; may be nil
	empty   string                                // on stderr, if the first table has no rows
}

// listVerb makes a command without arguments that prints a listing.
func (a *app) listVerb(use, short string, read func(context.Context, *session) (listing, error)) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.choose(a); err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				l, err := read(ctx, s)
				if err != nil {
					return err
				}
				return a.printListing(l, format)
			})
		},
	}
	format.add(cmd)
	return cmd
}

// catalogVerb is listVerb for a listing of documents of some kinds in the catalog.
func (a *app) catalogVerb(use, short string, kinds []string, read func(*mesh.Catalog) listing) *cobra.Command {
	return a.listVerb(use, short, func(ctx context.Context, s *session) (listing, error) {
		c, err := s.catalog(ctx, kinds...)
		if err != nil {
			return listing{}, err
		}
		l := read(c)
		l.revisionJSON = revisionOf(c)
		return l, nil
	})
}

// object is the listing in JSON.
func (l listing) object() ([]byte, error) {
	list, err := plainjson.Marshal(l.list)
	if err != nil {
		return nil, err
	}
	object, err := plainjson.Marshal(struct {
		header
		revisionJSON
	}{revisionJSON: l.revisionJSON})
	if err != nil {
		return nil, err
	}
	object = append(plainjson.AppendString(append(object[:len(object)-1], ','), l.name), ':')
	return append(append(object, list...), '}'), nil
}

func (a *app) printListing(l listing, format outputFormat) error {
	if format == formatJSON {
		object, err := l.object()
		if err != nil {
			return err
		}
		return a.writeJSON(object)
	}
	tables := l.tables()
	if format == formatName {
		return printColumn(a, tables[0], 0)
	}
	if len(tables[0].Rows) == 0 && l.empty != "" {
		fmt.Fprintln(a.stderr, "extctl:", terminal.Clean(l.empty))
	}
	note := ""
	if l.shorten != nil && format == formatTable {
		note = l.shorten(tables)
	}
	for n, t := range tables {
		if format == formatWide {
			t.Width, t.Limit = 0, 0
		}
		if n > 0 && len(t.Rows) == 0 {
			continue
		}
		if n > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := t.Print(a.stdout); err != nil {
			return err
		}
	}
	if note != "" {
		fmt.Fprintln(a.stderr, "extctl:", note)
	}
	if l.notes != nil {
		for _, note := range l.notes() {
			fmt.Fprintln(a.stderr, terminal.Clean(note))
		}
	}
	return nil
}

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
