package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
)

// callJSON is a call that a bridge keeps, and the bridge.
type callJSON struct {
	calls.Record
	Bridge string `json:"bridge"`
}

// keptCalls is a bridge's answer to calls.
type keptCalls struct {
	Calls []calls.Record `json:"calls"`
	More  bool           `json:"more"`
}

// callsFlags are the flags of calls.
type callsFlags struct {
	calls.Query
	since   string
	min     time.Duration
	bridges []string
	format  outputFormat
}

func callsCmd(a *app) *cobra.Command {
	var f callsFlags
	cmd := &cobra.Command{
		Use:   "calls [ID]",
		Short: "List the last failed calls, and the slowest calls",
		Long: `List calls of all extensions, or of one and its members, that bridges have answered: the last failures, and the slowest
calls of the last hours, newest first. Bridges keep no other calls, and neither arguments nor results.

CALL is the caller's id of a call, which also is in its own log. A call that was retried has an entry, with an id of its own,
for each try. Failures that no bridge has answered, such as time-outs of the caller, are not listed.`,
		Example: "  extctl calls --failed --since 1h\n  extctl calls hello --slow -n 10",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(a, args, cmd.Flags().Changed("lines")); err != nil {
				return err
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error { return listCalls(ctx, s, f) })
		},
		ValidArgsFunction: a.completeIDs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.Failed, "failed", false, "only failures")
	flags.BoolVar(&f.Slow, "slow", false, "only the slowest calls of the last hours, slowest first")
	flags.StringVar(&f.since, "since", "", "only calls answered after this `TIME`: a duration such as 10m, or a time such as 2026-01-31T15:04:05Z")
	flags.DurationVar(&f.min, "min", 0, "only calls that took at least this `DURATION`")
	flags.StringVar(&f.Tool, "tool", "", "only calls of the tool with this `NAME` in its extension")
	flags.StringVar(&f.Agent, "caller", "", "only calls of this `CALLER`")
	flags.StringVar(&f.CallID, "call", "", "only the call with this `CALL` id")
	flags.IntVarP(&f.Limit, "lines", "n", 100, "at most `N` calls, and 1000 of one bridge; that many if --since is given")
	addBridges(cmd, &f.bridges)
	f.format.add(cmd, listFormats)
	return cmd
}

// parse checks the flags and completes the query.
func (f *callsFlags) parse(a *app, args []string, limited bool) (err error) {
	if err := f.format.choose(a, listFormats); err != nil {
		return err
	}
	switch {
	case f.Failed && f.Slow:
		return usage("--failed and --slow cannot be combined; --failed --min 1s lists failures that took at least a second")
	case f.min < 0:
		return usage("--min %v: want a positive duration", f.min)
	case f.min%time.Millisecond != 0:
		return usage("--min %v: want whole milliseconds", f.min)
	case f.Limit < 1:
		return usage("-n %d: want at least 1", f.Limit)
	}
	if f.ID, err = optionalID(args); err != nil {
		return err
	}
	f.MinMS = f.min.Milliseconds()
	f.Since, err = sinceLimit(f.since, limited, &f.Limit)
	return err
}

// optionalID is the id in arguments that have at most one.
func optionalID(args []string) (id string, err error) {
	if len(args) == 0 {
		return "", nil
	}
	return args[0], checkID(args[0])
}

func listCalls(ctx context.Context, s *session, f callsFlags) error {
	answers, failed, err := askRunning[keptCalls](ctx, s, f.bridges, "calls", f.Query)
	if err != nil {
		return err
	}
	all, more := mergeCalls(answers, &f.Query)
	if len(all) == 0 && len(failed) == 0 {
		if err := s.checkKnown(ctx, f.ID, f.bridges); err != nil {
			return err
		}
	}
	if s.json {
		return cmp.Or(s.printJSON(struct {
			header
			Calls  []callJSON `json:"calls"`
			More   bool       `json:"more,omitempty"`
			Failed failures   `json:"failed,omitempty"`
		}{Calls: all, More: more, Failed: failed}), failed.exit())
	}
	if len(all) == 0 && len(failed) == 0 {
		s.note("extctl: %s", f.nothing())
	}
	if err := printTable(s.app, callsTable(s.app, all, time.Now()), f.format, "CALL"); err != nil {
		return err
	}
	if more {
		what := "older"
		if f.Slow {
			what = "faster"
		}
		s.note("extctl: there are %s ones%s", what, listMore(len(all), f.Limit))
	}
	return failed.report(s.app)
}

// mergeCalls merges the calls of several bridges in the order of an answer, at most as many as the query allows.
func mergeCalls(answers []answer[keptCalls], q *calls.Query) (all []callJSON, more bool) {
	all = []callJSON{}
	for _, a := range answers {
		more = more || a.parsed.More
		for _, r := range a.parsed.Calls {
			all = append(all, callJSON{r, a.Bridge})
		}
	}
	slices.SortStableFunc(all, func(a, b callJSON) int { return q.Compare(&a.Record, &b.Record) })
	if len(all) > q.Limit {
		all, more = all[:q.Limit], true
	}
	return all, more
}

// nothing is printed if there are no calls.
func (f *callsFlags) nothing() string {
	what := "no failed or slow call"
	switch {
	case f.Failed:
		what = "no failed call"
	case f.Slow:
		what = "no slow call"
	}
	if f.ID != "" {
		what += " of " + f.ID
	}
	if f.Tool != "" || f.Agent != "" || f.CallID != "" || f.min > 0 {
		what += " matches"
	}
	if !f.Since.IsZero() {
		what += " since " + clockTime(f.Since, time.Now())
	}
	return what
}

func callsTable(a *app, all []callJSON, now time.Time) *terminal.Table {
	t := a.newTable("TIME", "EXTENSION", "TOOL", "DURATION", "CALLER", "CALL", "ERROR")
	for _, c := range all {
		t.Add(clockTime(c.At, now), c.ID, toolOf(c.Record), durationText(time.Duration(c.TookUS)*time.Microsecond), c.Agent, c.CallID, errorOf(c.Record))
	}
	t.Limit = 80
	return t
}

// toolOf is the tool of a call, or another method.
func toolOf(r calls.Record) string { return strings.TrimPrefix(r.Method, "tools/") }

// errorOf is how a call failed; "" if it did not.
func errorOf(r calls.Record) string {
	switch {
	case r.Outcome == calls.OK:
		return ""
	case r.Outcome == calls.Own:
		return fmt.Sprintf("the extension's own error %d", r.Code)
	case r.Reason != "":
		return r.Outcome + ": " + r.Reason
	}
	return r.Outcome
}

// clockTime is a time of day, with the date if it is not today's.
func clockTime(at, now time.Time) string {
	at = at.Local()
	if at.Format(time.DateOnly) != now.Local().Format(time.DateOnly) {
		return at.Format(time.DateTime)
	}
	return at.Format(time.TimeOnly)
}

// durationText is a duration with three digits.
func durationText(d time.Duration) string {
	switch {
	case d < 999500*time.Microsecond: // what is more has four digits
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	case d < 10*time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// printTable prints a table in a format that is not JSON; the format name prints the column names.
func printTable(a *app, t *terminal.Table, format outputFormat, names string) error {
	switch {
	case format == formatName:
		return printColumn(a, t, slices.Index(t.Names, names))
	case len(t.Rows) == 0:
		return nil
	case format == formatWide:
		t.Width, t.Limit = 0, 0
	}
	return t.Print(a.stdout)
}

// addBridges adds the flag --bridge, which names bridges, also if there is no catalog.
func addBridges(cmd *cobra.Command, names *[]string) {
	cmd.Flags().StringSliceVar(names, "bridge", nil, "ask only the bridge `NAME`; this also works without a catalog. May be repeated")
}

// checkBridges checks names of bridges on the command line: each becomes part of a subject.
func checkBridges(names []string) error {
	for _, name := range names {
		if err := wire.CheckID(name, false); err != nil {
			return &failure{code: exitInvalidID, err: fmt.Errorf("a bridge's name is written like an id: %w", err)}
		}
	}
	return nil
}

// bridgesToAsk are the named bridges, or all that run, sorted.
func bridgesToAsk(ctx context.Context, s *session, named []string) ([]string, error) {
	if err := checkBridges(named); err != nil {
		return nil, err
	}
	if len(named) == 0 {
		var err error
		if named, _, err = runningBridges(ctx, s); err != nil {
			return nil, err
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(named))), nil
}

// askRunning sends a control request to the named bridges, or to all that run.
func askRunning[T any](ctx context.Context, s *session, named []string, method string, params any) ([]answer[T], failures, error) {
	bridges, err := bridgesToAsk(ctx, s, named)
	if err != nil {
		return nil, nil, err
	}
	answers, failed, err := askBridges[T](ctx, s, bridges, method, params)
	if err != nil && len(bridges) == 1 {
		err = s.hintBridge(ctx, bridges[0], err)
	}
	return answers, failed, err
}

// checkKnown returns an error with similar ids if there is neither an extension with an id nor a member of it.
func (s *session) checkKnown(ctx context.Context, id string, bridges []string) error {
	if id == "" || len(bridges) > 0 {
		return nil
	}
	c, err := s.catalog(ctx, wire.KindState)
	if err != nil {
		return err
	}
	for _, e := range c.All() {
		if strings.HasPrefix(e.ID, id+".") {
			return nil
		}
	}
	_, err = extension(c, id)
	return err
}
