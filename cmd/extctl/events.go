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

	"github.com/nats-io/nats.go"
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
	follow bool
	format outputFormat
}

// eventsCommand is a run of extctl events.
type eventsCommand struct {
	*session
	flags *eventsFlags
}

func eventsCmd(a *app) *cobra.Command {
	var f eventsFlags
	cmd := &cobra.Command{
		Use:   "events [ID]",
		Short: "List what changed: instances, hosts and the leading registry",
		Long: `List the last transitions of instances (also of one extension and its members only), of hosts, and of the registry that
leads, oldest first. Each registry keeps the last 10,000 in memory, since it was started; a note says since when the one that
answers does.`,
		Example: "  extctl events --since 8h\n  extctl events hello -f",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := f.parse(a, args, cmd.Flags().Changed("lines")); err != nil {
				return err
			}
			limit := requestTimeout
			if f.follow {
				if limit = 0; a.yaml || f.format == formatName {
					return usage("an endless output has the format table, wide or json")
				}
			}
			return a.withMesh(cmd, limit, func(ctx context.Context, s *session) error { return eventsCommand{s, &f}.run(ctx) })
		},
		ValidArgsFunction: a.completeIDs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "only changes after this `TIME`: a duration such as 10m, or a time such as 2026-01-31T15:04:05Z")
	flags.StringVar(&f.Bridge, "bridge", "", "only changes of this bridge and of instances on it, by its `NAME`")
	flags.StringVar(&f.Kind, "kind", "", "only changes of this `KIND`: instance, host or leader")
	flags.IntVarP(&f.Limit, "lines", "n", 100, "start with the last `N` changes, at most 1000; that many if --since is given")
	flags.BoolVarP(&f.follow, "follow", "f", false, "keep printing new changes")
	f.format.add(cmd)
	if err := cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKinds, cobra.ShellCompDirectiveNoFileComp)); err != nil { // the flag is defined above
		panic(err)
	}
	return cmd
}

var eventKinds = []string{events.Instance, events.Host, events.Leader}

// parse checks the flags and completes the query.
func (f *eventsFlags) parse(a *app, args []string, limited bool) (err error) {
	if err := f.format.choose(a); err != nil {
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

func (s eventsCommand) ask(ctx context.Context, q events.Query) (a events.Answer, err error) {
	if s.flags.follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	result, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "events", q)
	if err == nil {
		err = json.Unmarshal(result, &a)
	}
	return a, err
}

func (s eventsCommand) run(ctx context.Context) error {
	a, err := s.ask(ctx, s.flags.Query)
	if err != nil {
		return err
	}
	if len(a.Events) == 0 && !s.flags.follow {
		if err := s.checkKnown(ctx, s.flags.ID, nil); err != nil {
			return err
		}
	}
	if s.json && !s.flags.follow {
		return s.printJSON(struct {
			header
			events.Answer
		}{Answer: a})
	}
	t := eventsTable(s.app, a.Events, time.Now(), s.reasonLimit())
	if !s.json {
		s.note("extctl: %s", recorded(a))
		err = printTable(s.app, t, s.flags.format, "NAME")
	} else {
		err = s.print(a.Events)
	}
	if !s.flags.follow || err != nil {
		return err
	}
	return s.follow(ctx, a)
}

// recorded states since when the registry records, and whether there is more than what is printed.
func recorded(a events.Answer) string {
	text := "the registry " + terminal.Clean(a.Registry) + " records since " + clockTime(a.Since, time.Now())
	if a.Since.IsZero() {
		text = "the registry " + terminal.Clean(a.Registry) + " does not record yet: it has not read the catalog"
	}
	switch {
	case len(a.Events) == 0:
		text += "; no such change"
	case a.More:
		text += "; there are older ones" + listMore(len(a.Events))
	}
	return text
}

// maxListed is how many events or calls one registry or bridge returns at most.
const maxListed = 1000

// listMore is the end of a note: how to get older entries than the n that are printed.
func listMore(n int) string {
	if n < maxListed {
		return fmt.Sprintf(", -n %d lists more", min(2*max(n, 1), maxListed))
	}
	return "; an ID and the flags choose fewer kinds of them"
}

// eventsInterval is how often events -f requests new ones.
const eventsInterval = time.Second

// follow prints the changes after an answer until it is interrupted. A registry that cannot be reached is reported once.
func (s eventsCommand) follow(ctx context.Context, a events.Answer) error {
	tick := time.NewTicker(eventsInterval)
	defer tick.Stop()
	q, away := s.flags.Query, false
	last := q.Since
	if last.IsZero() {
		last = time.Now()
	}
	q.Since, q.Limit = time.Time{}, 0
	last = lastTime(last, a.Events)
	for {
		q.After = max(q.After, a.Revision) // another replica may have received less
		select {
		case <-ctx.Done():
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		case <-tick.C:
		}
		next, err := s.ask(ctx, q)
		switch {
		case ctx.Err() != nil:
			continue
		case s.nc.IsClosed():
			return nats.ErrConnectionClosed
		case err != nil:
			if !away {
				s.printError(exitCode(err), err)
			}
			away = true
			continue
		case next.CatalogID != a.CatalogID: // its revisions begin again; the registry also has the events of the one before
			q.After, q.Since, a.CatalogID, a.Revision = 0, last.Add(1), next.CatalogID, 0
			continue
		case next.More:
			fmt.Fprintln(s.stderr, "extctl: there were more changes in this time than are printed") // with --json, too
		}
		away, a = false, next
		last = lastTime(last, a.Events)
		if err := s.print(a.Events); err != nil {
			return err
		}
	}
}

// lastTime is the time of the last event, or before if there is none.
func lastTime(before time.Time, all []events.Event) time.Time {
	if len(all) == 0 {
		return before
	}
	return all[len(all)-1].At
}

// print prints a line for each event: an object with --json.
func (s eventsCommand) print(all []events.Event) error {
	for _, e := range all {
		if s.json {
			if err := s.printJSON(e); err != nil {
				return err
			}
			continue
		}
		row := eventRow(e, time.Now(), s.reasonLimit())
		if _, err := fmt.Fprintf(s.stdout, "%s  %-8s  %-16s  %-10s  %s  %s\n", row[0], row[1], terminal.Clean(row[2]), terminal.Clean(row[3]), terminal.Clean(row[4]), terminal.Clean(row[5])); err != nil {
			return err
		}
	}
	return nil
}

// reasonLimit is how many characters of a reason are printed.
func (s eventsCommand) reasonLimit() int {
	if s.flags.format == formatWide {
		return math.MaxInt
	}
	return 100
}

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
