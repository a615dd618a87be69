package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func showCmd(a *app) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:     "show ID",
		Aliases: []string{"describe"},
		Short:   "Show one extension: its instances, tools and diagnostics; `show registry` prints the registry's status",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.choose(a, objectFormats); err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				if args[0] == "registry" { // reserved: no extension has this id
					return showRegistry(ctx, s)
				}
				c, e, err := s.extension(ctx, args[0])
				if err != nil {
					return err
				}
				exits := lastExits(ctx, s, e)
				if a.json {
					return a.printJSON(struct {
						header
						revisionJSON
						health.Extension
						LastExits []exitJSON `json:"last_exits"`
						Spec      *wire.Spec `json:"spec"`
					}{revisionJSON: revisionOf(c), Extension: health.Of(e), LastExits: exits, Spec: e.Spec})
				}
				return printExtension(a, e, exits, format)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	format.add(cmd, objectFormats)
	return cmd
}

func printExtension(a *app, e mesh.Extension, exits []exitJSON, format outputFormat) error {
	w := bufio.NewWriter(a.stdout)
	j := health.Of(e)
	state := string(j.State)
	if a.colour() {
		state = paint(state)
	}
	line := func(name, format string, args ...any) {
		if v := fmt.Sprintf(format, args...); v != "" {
			fmt.Fprintf(w, "%-12s %s\n", name+":", v)
		}
	}
	line("Id", "%s", terminal.Clean(j.ID))
	line("Name", "%s", terminal.Clean(e.Spec.Name))
	line("Version", "%s", terminal.Clean(j.Version))
	line("Description", "%s", terminal.Clean(e.Spec.Description))
	line("State", "%s", state)
	line("Reason", "%s", terminal.Clean(j.Reason))
	if !e.State.Since.IsZero() {
		line("Since", "%s (%s)", e.State.Since.Local().Format(time.DateTime), words.Ago(e.State.Since))
	}
	if b := j.Breaker; b != nil {
		line("Breaker", "%s", b.State)
	}
	line("Transport", "%s", strings.TrimSuffix(terminal.Clean(j.Transport+", "+j.Dialect), ", "))
	line("Server", "%s", terminal.Clean(serverText(e.Spec.Server)))
	line("Subject", "%s", terminal.Clean(e.Spec.Subject))
	line("Parent", "%s", terminal.Clean(j.Parent))
	line("Hooks", "%s", terminal.Clean(strings.Join(e.Spec.Hooks, ", ")))
	for _, d := range e.Spec.Diagnostics {
		line(terminal.Clean(d.Level), "%s", terminal.Clean(d.Message))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := printPart(a, instancesTable(a, e.State.Instances), format); err != nil {
		return err
	}
	printExits(a, exits)
	return printPart(a, toolsTable(a, e), format)
}

// printPart prints an empty line and a table, unless it has no rows.
func printPart(a *app, t *terminal.Table, format outputFormat) error {
	if len(t.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return printTable(a, t, format, "")
}

// serverText describes what an MCP server has declared.
func serverText(s *wire.Server) string {
	if s == nil {
		return ""
	}
	text := strings.TrimSpace(s.Name()+" "+s.Version()) + ", MCP " + s.ProtocolVersion
	for _, o := range []struct {
		capability string
		list       *wire.Listing
	}{{"prompts", s.Lists.Prompts}, {"resources", s.Lists.Resources}, {"resource templates", s.Lists.Templates}, {"completions", nil}, {"logging", nil}} {
		if o.list != nil {
			text += fmt.Sprintf(", %s: %d", o.capability, o.list.Count)
		} else if s.Offers(o.capability) {
			text += ", " + o.capability
		}
	}
	if s.Instructions != "" {
		text += ", instructions: " + terminal.Short(s.Instructions, 200)
	}
	return strings.TrimPrefix(text, ", ")
}

func instancesTable(a *app, instances []wire.InstanceState) *terminal.Table {
	t := a.newTable("INSTANCE", "BRIDGE", "HOST", "VERSION", "STATE", "SINCE", "RESTARTS", "REASON")
	for _, i := range instances {
		t.Add(i.Instance, i.Bridge, i.Host, i.Version, string(i.State), words.Ago(i.Since), strconv.FormatUint(i.Restarts, 10), i.Reason)
	}
	t.Limit = 60
	return t
}

func toolsTable(a *app, e mesh.Extension) *terminal.Table {
	t := a.newTable("TOOL", "DESCRIPTION")
	t.Limit = 80
	for _, tool := range e.Spec.Tools {
		t.Add(tool.Name, terminal.FirstLine(ownDescription(e.ID, tool.Description)))
	}
	return t
}

// exitJSON is the last unexpected exit of an instance's process, as its bridge reports it.
type exitJSON struct {
	Bridge   string `json:"bridge"`
	Instance string `json:"instance"`
	bridge.Exit
}

// exitsTimeout limits the requests to bridges; the rest of the output comes from the catalog.
var exitsTimeout = time.Second

// lastExits requests the last exits from the extension's bridges, in parallel. It leaves out a bridge that does not
// reply, or to which NATS denies the request.
func lastExits(ctx context.Context, s *session, e mesh.Extension) []exitJSON {
	ctx, cancel := context.WithTimeout(ctx, exitsTimeout)
	defer cancel()
	var bridges []string
	for _, i := range e.State.Instances {
		if i.Bridge != "" && i.State != heartbeat.Lost {
			bridges = append(bridges, i.Bridge)
		}
	}
	slices.Sort(bridges)
	answers, _, _ := askBridges[bridge.Status](ctx, s, slices.Compact(bridges), "status", map[string]string{"id": e.ID})
	out := []exitJSON{}
	for _, a := range answers {
		for _, i := range a.parsed.Instances {
			if i.ID == e.ID && i.LastExit != nil {
				out = append(out, exitJSON{a.Bridge, i.Instance, *i.LastExit})
			}
		}
	}
	return out
}

// printExits prints the exits, each with the end of the process's stderr.
func printExits(a *app, exits []exitJSON) {
	const lines = 30 // a stack trace of Node.js is shorter
	for _, e := range exits {
		fmt.Fprintf(a.stdout, "\nLast exit of %s on %s: %s after %s, %s\n", terminal.Clean(e.Instance), terminal.Clean(e.Bridge), terminal.Clean(e.Status),
			time.Duration(e.UptimeSecs*float64(time.Second)).Round(time.Millisecond), words.Ago(e.At))
		if e.Cause != "" {
			fmt.Fprintf(a.stdout, "  stopped by the bridge: %s\n", terminal.Short(e.Cause, 200))
		}
		if e.Reason != "" {
			fmt.Fprintf(a.stdout, "  probable reason: %s\n", terminal.Short(e.Reason, 300))
		}
		tail := strings.Split(strings.TrimSpace(e.StderrTail), "\n")
		for _, line := range tail[max(0, len(tail)-lines):] {
			if line != "" {
				fmt.Fprintf(a.stdout, "  | %s\n", terminal.Clean(line))
			}
		}
	}
}

// showRegistry prints the registry's status as it is: its counters, the replicas it receives from, and what it refused.
func showRegistry(ctx context.Context, s *session) error {
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "status", nil)
	if err != nil {
		return err
	}
	if s.json {
		return s.printObject(member{"registry", raw})
	}
	return s.writeJSON(indented(raw))
}
