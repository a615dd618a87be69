package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/events"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// eventsFlags are the flags of events.
type eventsFlags struct {
	events.Query
	since  string
	format outputFormat
}

func eventsCmd(a *app) *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:   "events [ID]",
		Short: "List what changed: instances, hosts and the leading registry",
		Long: `List the last transitions of instances (also of one extension and its members only), of hosts, and of the registry that
leads, oldest first. Each registry keeps the last 10,000 in memory, since it was started; a note says since when the one that
answers does. extctl watch prints new changes of the catalog as they come.`,
		Example: "  extctl events --since 8h\n  extctl events hello -n 20",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := f.parse(a, args, cmd.Flags().Changed("lines")); err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error { return printEvents(ctx, s, &f) })
		},
		ValidArgsFunction: a.completeIDs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "only changes after this `TIME`: a duration such as 10m, or a time such as 2026-01-31T15:04:05Z")
	flags.StringVar(&f.Bridge, "bridge", "", "only changes of this bridge and of instances on it, by its `NAME`")
	flags.StringVar(&f.Kind, "kind", "", "only changes of this `KIND`: instance, host or leader")
	flags.IntVarP(&f.Limit, "lines", "n", 100, "the last `N` changes, at most 1000; that many if --since is given")
	f.format.add(cmd, listFormats)
	if err := cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKinds, cobra.ShellCompDirectiveNoFileComp)); err != nil { // the flag is defined above
		panic(err)
	}
	return cmd
}

var eventKinds = []string{events.Instance, events.Host, events.Leader}

// parse checks the flags and completes the query.
func (f *eventsFlags) parse(a *app, args []string, limited bool) (err error) {
	if err := f.format.choose(a, listFormats); err != nil {
		return err
	}
	switch {
	case f.Kind != "" && !slices.Contains(eventKinds, f.Kind):
		return usage("--kind %q: want %s", f.Kind, words.Or(eventKinds))
	case f.Limit < 1:
		return usage("-n %d: want at least 1", f.Limit)
	}
	if f.ID, err = optionalID(args); err != nil {
		return err
	}
	f.Since, err = sinceLimit(f.since, limited, &f.Limit)
	return err
}

// printEvents requests from a registry what the flags select, and prints it.
func printEvents(ctx context.Context, s *session, f *eventsFlags) error {
	result, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "events", f.Query)
	if err != nil {
		return err
	}
	var a events.Answer
	if err := json.Unmarshal(result, &a); err != nil {
		return err
	}
	if len(a.Events) == 0 {
		if err := s.checkKnown(ctx, f.ID, nil); err != nil {
			return err
		}
	}
	if s.json {
		return s.printJSON(struct {
			header
			events.Answer
		}{Answer: a})
	}
	s.note("extctl: %s", recorded(a, f.Limit))
	reasonLimit := 100
	if f.format == formatWide {
		reasonLimit = math.MaxInt
	}
	return printTable(s.app, eventsTable(s.app, a.Events, time.Now(), reasonLimit), f.format, "NAME")
}

// recorded states since when the registry records, and whether there is more than what is printed.
func recorded(a events.Answer, limit int) string {
	text := "the registry " + terminal.Clean(a.Registry) + " records since " + clockTime(a.Since, time.Now())
	if a.Since.IsZero() {
		text = "the registry " + terminal.Clean(a.Registry) + " does not record yet: it has not read the catalog"
	}
	switch {
	case len(a.Events) == 0:
		text += "; no such change"
	case a.More:
		text += "; there are older ones" + listMore(len(a.Events), limit)
	}
	return text
}

// maxListed is how many events or calls one registry or bridge returns at most.
const maxListed = 1000

// listMore is the end of a note: how to get more entries than the n that are printed of at most limit. An answer with fewer is as
// large as an answer may be.
func listMore(n, limit int) string {
	if n >= limit && n < maxListed {
		return fmt.Sprintf(", -n %d lists more", min(2*max(n, 1), maxListed))
	}
	return "; an ID and the flags choose fewer kinds of them"
}

// eventsTable has at most limit characters of each reason.
func eventsTable(a *app, all []events.Event, now time.Time, limit int) *terminal.Table {
	t := a.newTable("TIME", "KIND", "NAME", "BRIDGE", "CHANGE", "REASON")
	for _, e := range all {
		t.Add(eventRow(e, now, limit)...)
	}
	return t
}

// eventRow is an event in the columns of a table, with at most limit characters of its reason.
func eventRow(e events.Event, now time.Time, limit int) []string {
	name, reason := e.ID, terminal.Short(e.Reason, limit)
	switch e.Kind {
	case events.Host:
		name = e.Bridge
	case events.Leader:
		name = e.To
	}
	change := cmp.Or(e.From, "none") + " → " + cmp.Or(e.To, "removed")
	switch {
	case e.From == "" && e.Kind != events.Leader:
		change = "new → " + e.To
	case e.From == e.To && e.Kind == events.Instance:
		change = "restarted"
	case e.From == e.To:
		change = e.To
	}
	if e.Kind == events.Instance && e.Restarts > 0 && e.To == string(heartbeat.Ready) {
		reason = strings.TrimPrefix(reason+", "+words.Plural(int(e.Restarts), "restart"), ", ")
	}
	return []string{clockTime(e.At, now), e.Kind, name, e.Bridge, change, reason}
}
