package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
)

// logLine is one line of a child's output, as bridges store and publish it.
type logLine struct {
	ID       string    `json:"id"`
	Bridge   string    `json:"bridge,omitempty"`  // absent from bridges of before 0.2
	Replica  int       `json:"replica,omitempty"` // absent if the bridge runs only one
	Instance string    `json:"instance"`
	TS       time.Time `json:"ts"`
	Stream   string    `json:"stream,omitempty"` // stdout or log; absent: stderr
	Line     string    `json:"line"`
	Dropped  int       `json:"dropped,omitempty"` // instead of the line: the number of lines over the limit, which the bridge has dropped
}

// key identifies a line, to skip lines that are both stored and published while logs runs.
func (l logLine) key() string { return fmt.Sprint(l.Instance, l.TS.UnixNano(), l.Line, l.Dropped) }

// source names the instance that has written the line: its bridge and its number there. Instance names differ at their
// end only.
func (l logLine) source() string {
	if l.Bridge == "" {
		return cmp.Or(l.Instance[max(0, len(l.Instance)-6):], "-")
	}
	return fmt.Sprintf("%s/%d", l.Bridge, max(l.Replica, 1))
}

// logsFlags are the flags of logs.
type logsFlags struct {
	bridgeFlags
	follow     bool
	lines      int
	since      string
	timestamps bool
}

// selection is which lines logs prints, and how.
type selection struct {
	logsFlags
	ids   []string
	after time.Time // zero: all
}

func logsCmd(a *app) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [-f] ID…",
		Short: "Print the last lines that extensions wrote to standard error, and errors that they logged",
		Long: `Print the last lines that extensions wrote to standard error, what they wrote to standard output by mistake
(marked [stdout]), and the log messages of MCP servers that report an error ([log]).

Each line has the time, the bridge and the number of the instance there, and with several IDs the extension. A bridge keeps
the last 1,000 lines of an instance.`,
		Example: "  extctl logs hello --since 10m\n  extctl logs -f hello clock",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := selection{logsFlags: f, ids: slices.Compact(slices.Sorted(slices.Values(args)))}
			var err error
			if s.after, err = sinceLimit(f.since, cmd.Flags().Changed("lines"), &s.lines); err != nil {
				return err
			}
			for _, id := range s.ids {
				if err := checkID(id); err != nil {
					return err
				}
			}
			limit := requestTimeout
			if f.follow {
				limit = 0
			}
			return a.withMesh(cmd, limit, func(ctx context.Context, session *session) error {
				return logsCommand{session, s}.run(ctx)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	f.add(cmd)
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "keep printing new lines")
	cmd.Flags().IntVarP(&f.lines, "lines", "n", 100, "start with the last `N` lines")
	cmd.Flags().StringVar(&f.since, "since", "", "only lines after this `TIME`: a duration such as 10m, or a time such as 2026-01-31T15:04:05Z")
	cmd.Flags().BoolVarP(&f.timestamps, "timestamps", "t", false, "print date, time and milliseconds in UTC")
	return cmd
}

// maxLines is more than a bridge keeps.
const maxLines = 1_000_000

// sinceLimit parses the value of --since. With one, there is no limit unless the user has given one.
func sinceLimit(value string, limited bool, limit *int) (time.Time, error) {
	since, err := sinceTime(value, time.Now())
	if !since.IsZero() && !limited {
		*limit = maxLines
	}
	return since, err
}

// sinceTime parses the value of --since: a duration before now, a time, or "" for the zero time.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("--since %q: want a duration such as 10m or 1h30m, or a time such as 2026-01-31T15:04:05", s)
}

// wants reports whether a line is to be printed.
func (s *selection) wants(l logLine) bool {
	named := s.instance == l.source() && slices.Contains(s.ids, l.ID) || strings.HasPrefix(l.Instance, s.instance) || strings.HasSuffix(l.Instance, s.instance)
	return !l.TS.Before(s.after) && named && (s.bridge == "" || l.Bridge == "" || l.Bridge == s.bridge)
}

// logsCommand is a run of extctl logs.
type logsCommand struct {
	*session
	want selection
}

func (s logsCommand) run(ctx context.Context) error {
	live, closed := make(chan *nats.Msg, 1024), s.nc.StatusChanged(nats.CLOSED)
	defer s.nc.RemoveStatusListener(closed)
	for _, id := range withoutMembers(s.want.ids) { // they are received with their parent's
		for _, subject := range []string{s.prefix.Log(id), s.prefix.Log(id) + ".>"} { // and of its members
			var cancel context.CancelFunc
			ctx, cancel = s.denied.watch(ctx, subject+`"`)
			defer cancel()
			if !s.want.follow {
				continue
			}
			// Before the stored lines are read, so that no line is missed.
			sub, err := s.nc.ChanSubscribe(subject, live)
			if err != nil {
				return err
			}
			defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
		}
	}
	past, seen, failed, err := s.past(ctx)
	if err != nil {
		return err
	}
	if s.json && !s.want.follow {
		return cmp.Or(s.printJSON(struct {
			header
			Lines  []logLine `json:"lines"`
			Failed failures  `json:"failed,omitempty"`
		}{Lines: append([]logLine{}, past...), Failed: failed}), failed.exit())
	}
	for _, l := range past {
		if err := s.print(l); err != nil {
			return err
		}
	}
	_ = failed.report(s.app) // also the last result
	if len(past) == 0 && len(failed) == 0 {
		s.note("%s", s.want.nothing())
	}
	for s.want.follow {
		select {
		case <-ctx.Done():
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		case <-closed:
			return nats.ErrConnectionClosed
		case m := <-live:
			var l logLine
			if json.Unmarshal(m.Data, &l) != nil || seen[l.key()] || !s.want.wants(l) {
				continue
			}
			if err := s.print(l); err != nil {
				return err
			}
		}
	}
	return failed.exit()
}

// withoutMembers removes the members of the other extensions.
func withoutMembers(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return slices.ContainsFunc(ids, func(parent string) bool { return strings.HasPrefix(id, parent+".") })
	})
}

// nothing is printed if there are no stored lines.
func (s *selection) nothing() string {
	text := strings.Join(s.ids, " and ") + ": no output"
	if !s.after.IsZero() {
		text += " since " + clockTime(s.after, time.Now())
	}
	if s.follow {
		text += " yet"
	}
	return text
}

// followTimeout limits how long a bridge that hangs can delay new lines.
var followTimeout = 2 * time.Second

// past are the last lines that the bridges have stored, oldest first. It fails if no bridge of any of the extensions answers.
// With follow, timeouts are no failure, because new lines can still arrive. seen has the keys of all
// stored lines.
func (s logsCommand) past(ctx context.Context) (past []logLine, seen map[string]bool, failed failures, err error) {
	type result struct {
		answers []answer[storedLines]
		failed  failures
		err     error
	}
	results := make([]result, len(s.want.ids))
	var wg sync.WaitGroup
	for n, id := range s.want.ids {
		only, bridges, err := s.chosen(ctx, id)
		if err != nil {
			results[n].err = err
			continue
		}
		wg.Go(func() { results[n].answers, results[n].failed = s.stored(ctx, id, only, bridges) }) // ends with ctx
	}
	wg.Wait()
	answered := false
	seen = map[string]bool{} // a bridge returns the lines of members with those of their parent
	for _, r := range results {
		if r.err != nil {
			return nil, nil, nil, r.err
		}
		for _, f := range r.failed { // a bridge of several extensions fails once
			if !slices.ContainsFunc(failed, func(g failedJSON) bool { return g.Bridge == f.Bridge && g.code == f.code }) {
				failed = append(failed, f)
			}
		}
		for _, a := range r.answers {
			answered = true
			past = append(past, slices.DeleteFunc(a.parsed.Lines, func(l logLine) bool {
				again := seen[l.key()]
				seen[l.key()] = true
				return again || !s.want.wants(l)
			})...)
		}
	}
	late := !slices.ContainsFunc(failed, func(f failedJSON) bool { return !errors.Is(f.err, context.DeadlineExceeded) })
	if !answered && !(s.want.follow && late) {
		return nil, nil, nil, allFailed(failed)
	}
	slices.SortStableFunc(past, func(a, b logLine) int { return a.TS.Compare(b.TS) })
	return past[max(0, len(past)-max(s.want.lines, 0)):], seen, failed, nil
}

// storedLines are the last lines of an extension on one bridge.
type storedLines struct {
	Lines []logLine `json:"lines"`
}

// chosen returns the bridges of an extension, and the flags for it: the next extension has other instances.
func (s logsCommand) chosen(ctx context.Context, id string) (only bridgeFlags, bridges []string, err error) {
	if s.want.follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	only = s.want.bridgeFlags
	_, bridges, err = only.choose(ctx, s.session, id)
	return only, bridges, err
}

// stored requests the last lines of an extension from bridges.
func (s logsCommand) stored(ctx context.Context, id string, only bridgeFlags, bridges []string) ([]answer[storedLines], failures) {
	params := only.params(id)
	params["lines"] = max(s.want.lines, 1)
	if s.want.follow {
		params["lines"] = maxLines // also those that are not printed: they must not follow newer ones
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, followTimeout)
		defer cancel()
	}
	return askEach[storedLines](ctx, s.session, bridges, "logs", params)
}

// print prints one line. With --json and -f each line is a JSON object.
func (s logsCommand) print(l logLine) error {
	if s.json {
		return s.printJSON(l)
	}
	_, err := fmt.Fprintln(s.stdout, logText(l, len(s.want.ids) > 1 || l.ID != s.want.ids[0], s.want.timestamps, time.Now()))
	return err
}

// logText is a line as it is printed: with the time, with the date if it is not today's, and the source.
func logText(l logLine, withID, timestamps bool, now time.Time) string {
	when := clockTime(l.TS, now)
	if timestamps {
		when = l.TS.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	if withID {
		when += " " + terminal.Clean(l.ID)
	}
	when += " " + terminal.Clean(l.source())
	if l.Stream != "" {
		when += " [" + terminal.Clean(l.Stream) + "]"
	}
	if l.Dropped > 0 {
		return fmt.Sprintf("%s [dropped %d lines]", when, l.Dropped)
	}
	return when + " " + terminal.Clean(l.Line)
}
