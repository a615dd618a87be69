package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// oneToolJSON is the output of tool.
type oneToolJSON struct {
	header
	revisionJSON
	toolJSON
	State       heartbeat.State `json:"state"`
	Annotations json.RawMessage `json:"annotations"`
	Example     string          `json:"example"` // a command line that the schema accepts; "" if none was found
}

func toolCmd(a *app) *cobra.Command {
	var schemaOnly bool
	cmd := &cobra.Command{
		Use:   "tool TOOL",
		Short: "Show one tool: its arguments, and an example of a call",
		Long: `Show one tool: what it does, its arguments with their types and defaults, and a command line that calls it. TOOL is one
of the names that extctl call takes.`,
		Example: "  extctl tool ext_hello_greet",
		Args:    cobra.ExactArgs(1),
		RunE: a.onMesh(requestTimeout, func(ctx context.Context, s *session, args []string) error {
			c, t, err := s.findTool(ctx, args[0])
			if err != nil {
				return err
			}
			if e, _, _ := c.Resolve(t.Name); schemaOnly && areToolsUnknown(e) {
				return fail(exitUnavailable, "the tools of %s are not known yet", e.ID).with("extctl show "+terminal.ShellWord(e.ID), nil)
			}
			if schemaOnly && !a.json {
				return a.writeJSON(indented(orEmptyObject(t.InputSchema)))
			}
			return printTool(a, c, *t)
		}),
		ValidArgsFunction: a.completeTools,
	}
	cmd.Flags().BoolVar(&schemaOnly, "schema", false, "print only the JSON Schema of the arguments")
	return cmd
}

// areToolsUnknown reports whether the catalog has an extension without its tools.
func areToolsUnknown(e mesh.Extension) bool { return e.Spec != nil && len(e.Spec.Tools) == 0 }

func printTool(a *app, c *mesh.Catalog, t wire.Tool) error {
	e, _, _ := c.Resolve(t.Name) // a catalog without the extension's documents has no state to show
	o := oneToolJSON{revisionJSON: revisionOf(c), Annotations: t.Member("annotations"),
		toolJSON: toolJSON{Name: t.Name, Extension: e.ID, Tool: t.Own, Description: t.Description, InputSchema: t.InputSchema}}
	if e.State != nil {
		o.State, o.Available = e.State.State, e.State.Available
	}
	args, ok := toolargs.Example(t.InputSchema)
	unknown := areToolsUnknown(e)
	if ok = ok && !unknown; ok {
		o.Example = callLine(t.Name, args)
	}
	if a.json {
		return a.printJSON(o)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s", terminal.Clean(t.Name))
	if e.ID != "" {
		fmt.Fprintf(&b, " (%s)", terminal.Clean(e.ID+"/"+t.Own))
	}
	if o.State != "" {
		fmt.Fprintf(&b, ", %s", terminal.Clean(string(o.State)))
	}
	if unknown {
		if e.State != nil && e.State.Reason != "" {
			fmt.Fprintf(&b, ": %s", terminal.Clean(e.State.Reason))
		}
		_, err := fmt.Fprintf(a.stdout, "%s\nThe tools of %s are not known yet.\n", b.String(), terminal.Clean(e.ID))
		return err
	}
	fmt.Fprintln(&b)
	if text := strings.TrimSpace(ownDescription(e.ID, t.Description)); text != "" {
		fmt.Fprintf(&b, "%s\n", terminal.CleanLines(text))
	}
	if hints := hintsOf(o.Annotations); hints != "" {
		fmt.Fprintf(&b, "It %s.\n", hints)
	}
	fmt.Fprintln(&b)
	if _, err := a.stdout.Write([]byte(b.String())); err != nil {
		return err
	}
	if err := printArguments(a, t.InputSchema); err != nil {
		return err
	}
	if ok {
		_, err := fmt.Fprintf(a.stdout, "\nExample: %s\n", o.Example)
		return err
	}
	a.note("\nextctl has no example that the schema accepts; extctl tool --schema %s prints the schema", terminal.Clean(t.Name))
	return nil
}

// printArguments prints the table of a tool's arguments.
func printArguments(a *app, schema json.RawMessage) error {
	rows := toolargs.Describe(schema)
	if len(rows) == 0 {
		_, err := fmt.Fprintln(a.stdout, "It takes no arguments that its schema declares.")
		return err
	}
	t := a.newTable("ARGUMENT", "TYPE", "REQUIRED", "DEFAULT", "DESCRIPTION")
	for _, r := range rows {
		required := "-"
		if r.Required {
			required = "yes"
		}
		t.Add(r.Name, r.Type, required, r.Default, r.Description)
	}
	return t.Print(a.stdout)
}

// hintsOf states what the annotations declare about a tool: "only reads, may be repeated".
func hintsOf(annotations json.RawMessage) string {
	var h struct {
		ReadOnly    bool  `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		Idempotent  bool  `json:"idempotentHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	}
	if json.Unmarshal(annotations, &h) != nil {
		return ""
	}
	var out []string
	if h.ReadOnly {
		out = append(out, "only reads")
	} else if h.Destructive != nil && *h.Destructive {
		out = append(out, "may destroy data")
	}
	if h.Idempotent {
		out = append(out, "may be repeated")
	}
	if h.OpenWorld != nil && *h.OpenWorld {
		out = append(out, "uses systems outside of the mesh")
	}
	return strings.Join(out, ", ")
}

func orEmptyObject(schema json.RawMessage) json.RawMessage {
	if len(schema) == 0 {
		return json.RawMessage("{}")
	}
	return schema
}

// resolveTimeout limits the request to the registry; after it, the name is resolved from the whole catalog.
var resolveTimeout = time.Second

// findTool finds a tool by any of its names. The registry's answer to resolve has all that a call needs; the returned
// catalog has only that tool. If no registry answers, findTool reads the bucket: for <id>/<local name> the extension's
// documents, otherwise the whole catalog. A name that the registry does not find may be a local one, for which findTool
// reads the whole catalog, too.
func (s *session) findTool(ctx context.Context, name string) (*mesh.Catalog, *wire.Tool, error) {
	var unknown *mesh.NotFoundError // the registry's reply
	c, t, err := s.resolve(ctx, name)
	switch {
	case t != nil:
		s.warnIfOld(c.Age())
		return c, t, nil
	case err != nil && !errors.As(err, &unknown):
		return nil, nil, err
	}
	if id, _, full := strings.Cut(name, "/"); full && wire.CheckID(id, true) == nil {
		c, err := s.oneExtension(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		if _, t, ok := c.Tool(name); ok {
			s.warnIfOld(c.Age())
			return c, t, nil
		}
	}
	if c, err = s.catalog(ctx); err != nil {
		return nil, nil, err
	}
	_, t, err = c.Resolve(name)
	if err == nil && t.Name == "" { // of an extension whose tools are not known
		named := *t
		named.Name = name
		return c, &named, nil
	}
	if e, ok := errors.AsType[*mesh.NotFoundError](err); ok {
		if unknown != nil && len(e.Nearest) == 0 {
			e = unknown
		}
		t, err = findByLocalName(c, name, e)
	}
	return c, t, err
}

// findByLocalName finds a tool by the name that its extension uses. Agents see registered names only, but people read the
// local name in a manifest and type it. It must be unique among the extensions. notFound is the error if no tool has the
// name; findByLocalName adds similar names to it.
func findByLocalName(c *mesh.Catalog, name string, notFound *mesh.NotFoundError) (*wire.Tool, error) {
	var found []*wire.Tool
	var local []string
	registered := map[string]string{}
	amb := &mesh.AmbiguousError{Name: name}
	for _, e := range c.All() {
		for i := range e.Spec.Tools {
			t := &e.Spec.Tools[i]
			local, registered[t.Own] = append(local, t.Own), t.Name
			if t.Own == name {
				found, amb.Candidates = append(found, t), append(amb.Candidates, t.Name)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		for _, near := range nearest.Words(name, local) {
			if len(notFound.Nearest) < 3 && !slices.Contains(notFound.Nearest, registered[near]) {
				notFound.Nearest = append(notFound.Nearest, registered[near])
			}
		}
		return nil, notFound
	}
	return nil, amb
}

// oneExtension loads the catalog's documents of one extension.
func (s *session) oneExtension(ctx context.Context, id string) (*mesh.Catalog, error) {
	ctx, cancel := s.denied.watch(ctx, directGet)
	defer cancel()
	c, err := mesh.LoadExtension(ctx, s.nc, mesh.CatalogOptions{Prefix: string(s.prefix)}, id)
	return c, s.denied.explain(err)
}

// resolve sends a tool's name to the registry and returns a catalog of that tool. Without an error, tool is nil if no
// registry answered, or if the name is not a tool's.
func (s *session) resolve(ctx context.Context, name string) (c *mesh.Catalog, tool *wire.Tool, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "resolve", map[string]string{"name": name})
	if err == nil {
		c, tool, err = mesh.CatalogOfResolved(s.nc, mesh.CatalogOptions{Prefix: string(s.prefix)}, raw)
		if err != nil {
			return nil, nil, nil // the bucket is read instead
		}
		return c, tool, nil
	}
	return nil, nil, notResolved(name, err)
}

// notResolved is the error of a name that the registry does not know or that several tools have. It is nil if err says
// nothing about the name.
func notResolved(name string, err error) error {
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return nil
	}
	var why struct {
		Kind       string
		Nearest    []string
		Candidates []struct{ Name string }
	}
	if json.Unmarshal(e.Data, &why) != nil {
		return nil
	}
	switch why.Kind {
	case "not_found":
		return &mesh.NotFoundError{Name: name, Nearest: why.Nearest}
	case "ambiguous":
		amb := &mesh.AmbiguousError{Name: name}
		for _, c := range why.Candidates {
			amb.Candidates = append(amb.Candidates, c.Name)
		}
		return amb
	}
	return nil
}
