package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/plainyaml"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// listing is what a verb prints that lists a part of the catalog.
type listing struct {
	revisionJSON
	name   string                   // of the list in the JSON object
	list   any                      // nil is printed as []
	tables func() []*terminal.Table // without --json; tables after the first are printed if they have rows
	notes  func() []string          // without --json, on stderr; may be nil
	empty  string                   // on stderr, if the first table has no rows
}

// listVerb makes a command without arguments that prints a listing.
func (a *app) listVerb(use, short string, read func(context.Context, *session) (listing, error)) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.choose(a, listFormats); err != nil {
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
	format.add(cmd, listFormats)
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

var (
	objectFormats = []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML)} // of a verb that prints one object
	listFormats   = append(slices.Clone(objectFormats), string(formatName))
)

func (f *outputFormat) add(cmd *cobra.Command, formats []string) {
	cmd.Flags().StringVarP((*string)(f), "output", "o", "", "`FORMAT`: "+words.Or(formats)+"; nothing is shortened in wide, and json is --json (default table)")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)); err != nil { // the flag is defined above
		panic(err)
	}
}

// choose checks the format. With json or yaml, errors have that format, too.
func (f *outputFormat) choose(a *app, formats []string) error {
	if a.json {
		*f = formatJSON
	}
	*f = cmp.Or(*f, formatTable)
	if !slices.Contains(formats, string(*f)) {
		return usage("-o %q: want %s", string(*f), words.Or(formats))
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

// filter selects extensions or bridges of a list; its zero value selects all.
type filter struct {
	states, bridges []string
	problems        bool
}

var listedStates = []string{"ready", "spawning", "restarting", "draining", "failed", "gated", "lost", "shutdown"}

func (f *filter) add(cmd *cobra.Command, what, problems string) {
	cmd.Flags().StringSliceVar(&f.states, "state", nil, "only "+what+" in the `STATE`; several are separated by commas")
	cmd.Flags().StringSliceVar(&f.bridges, "bridge", nil, "only "+what+" on the bridge `NAME`; several are separated by commas")
	cmd.Flags().BoolVar(&f.problems, "problems", false, "only "+what+" with problems: "+problems)
	cmd.PreRunE = func(*cobra.Command, []string) error { return f.check() }
}

// set reports whether the filter selects only a part.
func (f *filter) set() bool { return len(f.states)+len(f.bridges) > 0 || f.problems }

func (f *filter) check() error {
	for _, s := range f.states {
		if !slices.Contains(listedStates, s) {
			return usage("--state %q: want %s", s, words.Or(listedStates))
		}
	}
	return nil
}

// checkBridges fails for a bridge that the catalog does not have: an empty list would look as if nothing were wrong there.
func (f *filter) checkBridges(ctx context.Context, s *session) error {
	if len(f.bridges) == 0 {
		return nil
	}
	c, err := s.catalog(ctx, wire.KindHost)
	if err != nil {
		return err
	}
	return f.knownBridges(c.Hosts())
}

func (f *filter) knownBridges(hosts []mesh.Host) error {
	var known []string
	for _, h := range hosts {
		known = append(known, h.Bridge)
	}
	for _, b := range f.bridges {
		if slices.Contains(known, b) {
			continue
		}
		e := fail(exitNotFound, "there is no bridge %q", b).with("`extctl hosts` lists the bridges", nil)
		e.suggest(b, known)
		return e
	}
	return nil
}

func (f *filter) hasState(s heartbeat.State) bool {
	return len(f.states) == 0 || slices.Contains(f.states, string(s))
}

// extension reports whether the filter selects an extension: one with an instance on one of the bridges, in one of the
// states, which is that of the extension or, with bridges, of an instance there.
func (f *filter) extension(j health.Extension) bool {
	if f.problems && j.Level() == "" {
		return false
	}
	if len(f.bridges) == 0 {
		return f.hasState(j.State)
	}
	return slices.ContainsFunc(j.Instances, func(i wire.InstanceState) bool {
		return slices.Contains(f.bridges, i.Bridge) && f.hasState(i.State)
	})
}

func (f *filter) host(h wire.Host) bool {
	return f.hasState(h.State) && (len(f.bridges) == 0 || slices.Contains(f.bridges, h.Bridge)) && (!f.problems || h.State == heartbeat.Lost || len(h.Problems)+h.ProblemsLeftOut > 0)
}

// header is the first member of every JSON object that extctl prints.
type header struct {
	SchemaVersion schemaVersion `json:"schema_version"`
}

// schemaVersion is always 1, also in its zero value.
type schemaVersion struct{}

// MarshalJSON writes the version.
func (schemaVersion) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

// printJSON prints v on a line of its own.
func (a *app) printJSON(v any) error {
	text, err := plainjson.Marshal(v)
	if err != nil {
		return err
	}
	return a.writeJSON(text)
}

// member is a member of a JSON object.
type member struct {
	name  string
	value any
}

// printObject prints an object with schema_version and the members on a line of its own.
func (a *app) printObject(members ...member) error {
	object := []byte(`{"schema_version":1`)
	for _, m := range members {
		value, err := plainjson.Marshal(m.value)
		if err != nil {
			return err
		}
		object = append(plainjson.AppendString(append(object, ','), m.name), ':')
		object = append(object, value...)
	}
	return a.writeJSON(append(object, '}'))
}

// writeJSON writes JSON that may contain text from the mesh, and ends the line. On a terminal, characters that could control
// it are escaped; anywhere else the bytes are unchanged. With -o yaml it writes the same as YAML.
func (a *app) writeJSON(text []byte) error {
	var err error
	switch {
	case a.yaml:
		text, err = plainyaml.FromJSON(text)
	case daemon.IsTerminal(a.stdout):
		text = append(terminal.EscapeJSON(text), '\n')
	default:
		text = append(text[:len(text):len(text)], '\n')
	}
	if err == nil {
		_, err = a.stdout.Write(text)
	}
	return err
}

func (a *app) newTable(names ...string) *terminal.Table {
	t := &terminal.Table{Names: names, Width: terminal.Width(a.stdout)}
	if a.colour() {
		t.Paint = paintCell
	}
	return t
}

// colour reports whether to colour stdout: it is a screen and NO_COLOR is not set.
func (a *app) colour() bool { return a.getenv("NO_COLOR") == "" && isScreen(a, a.stdout) }

// isScreen reports whether out is a terminal that interprets escape sequences.
func isScreen(a *app, out io.Writer) bool {
	return daemon.IsTerminal(out) && a.getenv("TERM") != "dumb"
}

// paintCell colours a state, and a number of instances if not all are ready.
func paintCell(column, cell string) string {
	switch ready, all, _ := strings.Cut(cell, "/"); {
	case column == "STATE":
		return paint(cell)
	case column == "INSTANCES" && ready != all:
		return yellow + cell + noColour
	}
	return cell
}

const (
	red      = "\x1b[31m"
	green    = "\x1b[32m"
	yellow   = "\x1b[33m"
	noColour = "\x1b[0m"
)

// paint colours a state, or a text that begins with one: green if ready, yellow in transition, red if it does not work.
func paint(state string) string {
	first, _, _ := strings.Cut(state, " ")
	colour := ""
	switch heartbeat.State(first) {
	case heartbeat.Ready:
		colour = green
	case heartbeat.Spawning, heartbeat.Restarting, heartbeat.Draining, health.Warn:
		colour = yellow
	case heartbeat.Failed, heartbeat.Lost, heartbeat.Gated, health.Error:
		colour = red
	default:
		return state
	}
	return colour + state + noColour
}
