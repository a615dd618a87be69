package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
)

// statsFlags are the flags of stats and top.
type statsFlags struct {
	bridges []string
	watch   time.Duration // 0: print once
	format  outputFormat
}

// statsCommand is a run of extctl stats or top, for all extensions if id is empty.
type statsCommand struct {
	*session
	flags *statsFlags
	id    string
}

// tools reports whether the table has a row for each tool.
func (s statsCommand) tools() bool { return s.id != "" || s.flags.format == formatWide }

func statsCmd(a *app) *cobra.Command {
	cmd, f := statsVerb(a, "stats [ID]", "Print the number of calls and errors, and how long calls take")
	cmd.Long = `Print the number of calls and errors and how long calls take, for each extension, or for each tool of one extension and its
members. Bridges count since they started; the numbers of several bridges are summed up.

P50 and P99 are estimates: half of the calls, and 99 of 100, took at most that long. Errors include calls that were refused and
results with isError. The tool _other is for other methods, and for tools over a bridge's limit of 200.

With --watch, the table has the calls and errors a second, and the durations, since the previous table.`
	cmd.Example = "  extctl stats\n  extctl stats hello --watch 5s"
	cmd.Flags().DurationVar(&f.watch, "watch", 0, "print a new table every `DURATION` until interrupted")
	return cmd
}

func topCmd(a *app) *cobra.Command {
	cmd, f := statsVerb(a, "top [ID]", "Show the calls a second, errors and durations until interrupted: stats --watch 2s")
	cmd.Flags().DurationVar(&f.watch, "watch", 2*time.Second, "update the table every `DURATION`")
	return cmd
}

func statsVerb(a *app, use, about string) (*cobra.Command, *statsFlags) {
	f := &statsFlags{}
	cmd := &cobra.Command{
		Use: use, Short: about, Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.format.choose(a, listFormats); err != nil {
				return err
			}
			id, err := optionalID(args)
			if err != nil {
				return err
			}
			if watch := cmd.Flags().Changed("watch"); (watch || f.watch != 0) && (f.watch < minWatch || f.watch > maxWatch) {
				return usage("--watch %v: want a duration from %v to %v", f.watch, minWatch, maxWatch)
			}
			limit := requestTimeout
			if f.watch > 0 {
				if limit = 0; a.yaml || f.format == formatName {
					return usage("an endless output has the format table, wide or json")
				}
			}
			return a.withMesh(cmd, limit, func(ctx context.Context, s *session) error {
				c := statsCommand{s, f, id}
				if f.watch > 0 {
					return c.watch(ctx)
				}
				return c.run(ctx)
			})
		},
	}
	addBridges(cmd, &f.bridges)
	f.format.add(cmd, listFormats)
	return cmd, f
}

// The limits of --watch. More often than that would only load the bridges.
const (
	minWatch = 100 * time.Millisecond
	maxWatch = time.Hour
)

// usageJSON is what was counted of an extension or a tool.
type usageJSON struct {
	ID     string      `json:"id,omitempty"`   // of an extension
	Tool   string      `json:"tool,omitempty"` // of a tool
	Calls  uint64      `json:"calls"`
	Failed uint64      `json:"failed"`
	P50    int64       `json:"p50_us"`
	P99    int64       `json:"p99_us"`
	Tools  []usageJSON `json:"tools,omitempty"`

	took calls.Durations
}

func (u *usageJSON) add(calls, failed uint64, took calls.Durations) {
	u.Calls += calls
	u.Failed += failed
	u.took.Add(took)
	u.P50, u.P99 = u.took.Quantile(0.5).Microseconds(), u.took.Quantile(0.99).Microseconds()
}

// statsJSON is the output of stats.
type statsJSON struct {
	header
	Since      time.Time   `json:"since"`                 // the first of the bridges started
	IntervalMS int64       `json:"interval_ms,omitempty"` // with --watch: in so long
	Extensions []usageJSON `json:"extensions"`
	Failed     failures    `json:"failed,omitempty"`
}

// sample is what the bridges had counted at a time.
type sample struct {
	at      time.Time
	answers []answer[calls.Stats]
	failed  failures
}

func (s statsCommand) sample(ctx context.Context) (sample, error) {
	answers, failed, err := askRunning[calls.Stats](ctx, s.session, s.flags.bridges, "stats", calls.Query{ID: s.id})
	if err != nil {
		return sample{}, err
	}
	for _, a := range answers {
		if !slices.Equal(a.parsed.BoundsUS, calls.BoundsUS()) {
			return sample{}, fail(exitOther, "bridge %s counts durations in other classes than this version of extctl; use the version of the bridge", a.Bridge)
		}
	}
	return sample{time.Now(), answers, failed}, nil
}

// counted sums up what was counted, or what was counted since an earlier sample. A bridge that has restarted in between counts
// from zero; one that did not answer then is left out.
func (n sample) counted(earlier *sample) statsJSON {
	out := statsJSON{Extensions: []usageJSON{}, Failed: n.failed}
	type key struct {
		bridge, since, id, tool string
	}
	before := map[key]calls.ToolStat{}
	if earlier != nil {
		out.IntervalMS = max(1, n.at.Sub(earlier.at).Milliseconds())
		for _, a := range earlier.answers {
			before[key{bridge: a.Bridge}] = calls.ToolStat{}
			for _, t := range a.parsed.Tools {
				before[key{a.Bridge, a.parsed.Since.String(), t.ID, t.Tool}] = t
			}
		}
	}
	for _, a := range n.answers {
		if out.Since.IsZero() || a.parsed.Since.Before(out.Since) {
			out.Since = a.parsed.Since
		}
		if _, asked := before[key{bridge: a.Bridge}]; earlier != nil && !asked {
			continue
		}
		for _, t := range a.parsed.Tools {
			out.add(t, before[key{a.Bridge, a.parsed.Since.String(), t.ID, t.Tool}])
		}
	}
	order := func(a, b usageJSON) int {
		if earlier != nil && a.Calls != b.Calls { // the busiest first: a terminal may not have room for all
			return cmp.Compare(b.Calls, a.Calls)
		}
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Tool, b.Tool))
	}
	slices.SortFunc(out.Extensions, order)
	for _, e := range out.Extensions {
		slices.SortFunc(e.Tools, order)
	}
	return out
}

// add adds what a tool on a bridge has counted since before.
func (j *statsJSON) add(now, before calls.ToolStat) {
	took, _ := now.Took()
	earlier, counted := before.Took()
	if counted && before.Calls <= now.Calls && before.Failed <= now.Failed {
		took = took.Sub(earlier)
		now.Calls, now.Failed = now.Calls-before.Calls, now.Failed-before.Failed
	}
	e := entry(&j.Extensions, func(u usageJSON) bool { return u.ID == now.ID }, usageJSON{ID: now.ID})
	e.add(now.Calls, now.Failed, took)
	entry(&e.Tools, func(u usageJSON) bool { return u.Tool == now.Tool }, usageJSON{Tool: now.Tool}).add(now.Calls, now.Failed, took)
}

// entry returns the entry of a list, which is added if it is not there.
func entry(list *[]usageJSON, is func(usageJSON) bool, added usageJSON) *usageJSON {
	n := slices.IndexFunc(*list, is)
	if n < 0 {
		n, *list = len(*list), append(*list, added)
	}
	return &(*list)[n]
}

func (s statsCommand) run(ctx context.Context) error {
	now, err := s.sample(ctx)
	if err != nil {
		return err
	}
	out := now.counted(nil)
	if len(out.Extensions) == 0 && len(out.Failed) == 0 {
		if err := s.checkKnown(ctx, s.id, s.flags.bridges); err != nil {
			return err
		}
	}
	if s.json {
		return cmp.Or(s.printJSON(out), out.Failed.exit())
	}
	if err := printTable(s.app, s.table(out), s.flags.format, "EXTENSION"); err != nil {
		return err
	}
	calls := "calls since"
	if len(out.Extensions) == 0 {
		calls = "no calls since"
	}
	s.note("extctl: %s the start of the bridges, at %s or later", calls, clockTime(out.Since, time.Now()))
	return out.Failed.report(s.app)
}

// rateText is a number per second: a whole one from a thousand on, below that one with a decimal.
func rateText(x float64) string {
	if x >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(10*x)/10, 'f', -1, 64)
}

// table is a table with a row for each extension, or for each tool.
func (s statsCommand) table(out statsJSON) *terminal.Table {
	names := []string{"EXTENSION", "TOOL", "CALLS", "ERRORS", "ERRORS %", "P50", "P99"}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	if out.IntervalMS > 0 {
		names[2], names[3] = "CALLS/S", "ERRORS/S"
		number = func(n uint64) string { return rateText(float64(n) * 1000 / float64(out.IntervalMS)) }
	}
	if !s.tools() {
		names = slices.Delete(names, 1, 2)
	}
	t := s.newTable(names...)
	row := func(u usageJSON, name ...string) {
		share, p50, p99 := "", "", ""
		if u.Calls > 0 {
			share = strconv.FormatFloat(100*float64(u.Failed)/float64(u.Calls), 'f', 1, 64)
		}
		if u.took.Total() > 0 {
			p50, p99 = usText(u.P50), usText(u.P99)
		}
		t.Add(append(name, number(u.Calls), number(u.Failed), share, p50, p99)...)
	}
	for _, e := range out.Extensions {
		if !s.tools() {
			row(e, e.ID)
		}
		for n := 0; s.tools() && n < len(e.Tools); n++ {
			row(e.Tools[n], e.ID, e.Tools[n].Tool)
		}
	}
	return t
}

func usText(us int64) string { return durationText(time.Duration(us) * time.Microsecond) }

// watch prints a table every few seconds, on a terminal over the previous one.
func (s statsCommand) watch(ctx context.Context) error {
	tick := time.NewTicker(s.flags.watch)
	defer tick.Stop()
	var before *sample
	for {
		now, err := s.sampleWithin(ctx)
		if ctx.Err() != nil {
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		}
		if s.nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
		if before == nil && err != nil {
			return err
		}
		if err := s.print(now, before, err); err != nil {
			return err
		}
		if err == nil {
			before = &now
		}
		select {
		case <-ctx.Done():
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		case <-tick.C:
		}
	}
}

// sampleWithin is sample with the time limit of a request.
func (s statsCommand) sampleWithin(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now, err := s.sample(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = explainTimeout(err, requestTimeout)
	}
	return now, err
}

// print prints what was counted since the sample before, or the error of a sample. Before the first sample there is none: on
// a terminal, the first table has the numbers since the bridges started.
func (s statsCommand) print(now sample, before *sample, failed error) error {
	live := isScreen(s.app, s.stdout) && !s.json
	switch {
	case failed != nil:
		s.printError(exitCode(failed), failed)
		return nil
	case before == nil && !live:
		return nil
	}
	out := now.counted(before)
	if s.json {
		return s.printJSON(out)
	}
	var frame bytes.Buffer
	if live {
		frame.WriteString("\x1b[H\x1b[2J") // the upper left corner of an empty screen
	}
	what := "since their start"
	if before != nil {
		what = fmt.Sprintf("in the last %v", now.at.Sub(before.at).Round(100*time.Millisecond))
	}
	t := s.table(out)
	if s.flags.format == formatWide {
		t.Width = 0
	}
	line := func(text string) { fmt.Fprintln(&frame, terminal.Cut(terminal.Clean(text), cmp.Or(t.Width, 200))) }
	line(fmt.Sprintf("%s  %s on %s, %s", clockTime(now.at, now.at), words.Plural(len(out.Extensions), "extension"), words.Plural(len(now.answers), "bridge"), what))
	if live {
		_, height := terminal.Size(s.stdout)
		most := max(1, height-3-len(out.Failed)) // the line above, the names, and the cursor
		t.Rows = t.Rows[:min(len(t.Rows), most)]
	}
	if err := t.Print(&frame); err != nil {
		return err
	}
	for _, b := range out.Failed {
		if live {
			line(b.err.Error())
		} else {
			s.printError(b.code, b.err)
		}
	}
	_, err := io.Copy(s.stdout, &frame)
	return err
}
