package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
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

func printTool(a *app, c *mesh.Catalog, t wire.Tool) error {
	e, _, _ := c.Resolve(t.Name) // a catalog without the extension's documents has no state to show
	o := oneToolJSON{revisionJSON: revisionOf(c), Annotations: annotationsOf(t),
		toolJSON: toolJSON{Name: t.Name, Extension: e.ID, Tool: t.Own, Description: t.Description, InputSchema: t.InputSchema}}
	if e.State != nil {
		o.State, o.Available = e.State.State, e.State.Available
	}
	args, ok := toolargs.Example(t.InputSchema)
	if ok {
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
	fmt.Fprintln(&b)
	if text := strings.TrimSpace(strings.TrimPrefix(t.Description, "[ext:"+e.ID+"] ")); text != "" {
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

// annotationsOf are the annotations of an MCP tool; null if it has none.
func annotationsOf(t wire.Tool) json.RawMessage {
	for _, m := range t.Extra {
		if m.Key == "annotations" {
			return m.Value
		}
	}
	return json.RawMessage("null")
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
