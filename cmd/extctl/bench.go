package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func benchCmd(a *app) *cobra.Command {
	var o load.Options
	var warmUp int
	var data string
	cmd := &cobra.Command{
		Use:   "bench TOOL [JSON | key=value… | @file | -]",
		Short: "Measure the latency and the rate of a tool's calls",
		Long: `Call a tool from several callers in parallel, over the same path as agents, and print how long the calls
took. The calls are real: choose a tool that can be called ten thousand times without harm.`,
		Example: `  extctl bench ext_textkit_wordcount text='one two' --callers 64 --duration 5s
  extctl bench ext_hello_greet name=Ada --calls 100 --json`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withStdin(func(cmd *cobra.Command, args []string) error {
			switch {
			case o.Callers < 1 || o.Callers > 10_000:
				return usage("--callers %d: want 1 to 10000", o.Callers)
			case o.Calls < 0 || warmUp < 0 || o.For <= 0:
				return usage("--calls and --warm-up want 0 or more, --duration more than 0")
			}
			if data != "" {
				args = append(args, data)
			}
			return a.withMesh(cmd, 0, func(ctx context.Context, s *session) error {
				if _, _, err := s.findTool(ctx, args[0]); errors.Is(err, mesh.ErrNoCatalog) { // following waits for a registry
					return err
				}
				return s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
					return runBench(ctx, s, c, args, o, warmUp)
				})
			})
		}),
		ValidArgsFunction: a.completeTools,
	}
	f := cmd.Flags()
	f.IntVar(&o.Callers, "callers", 1, "call from `N` callers in parallel")
	f.IntVar(&o.Calls, "calls", 0, "stop after `N` calls (0: only --duration counts)")
	f.DurationVar(&o.For, "duration", 5*time.Second, "start no new call after `DURATION`")
	f.IntVar(&warmUp, "warm-up", 100, "make `N` calls first that are not measured")
	f.StringVar(&data, "args", "", "the tool's arguments as one `JSON` object, instead of after its name")
	return cmd
}

func runBench(ctx context.Context, s *session, c *mesh.Catalog, args []string, o load.Options, warmUp int) error {
	synced, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := c.WaitSynced(synced); err != nil {
		return err
	}
	_, t, err := c.Resolve(args[0])
	if e, ok := errors.AsType[*mesh.NotFoundError](err); ok {
		t, err = findByLocalName(c, args[0], e)
	}
	if err != nil {
		return err
	}
	tool := cmp.Or(t.Name, args[0]) // the tools of its extension may not be known
	raw, err := s.arguments(tool, args[1:], t.InputSchema)
	if err != nil {
		return err
	}
	client := mesh.NewClient(s.nc, mesh.ClientOptions{Prefix: string(s.prefix), Catalog: c, Schemas: schema.Compile})
	ctx, end := s.watchCall(ctx, c, tool)
	defer end()
	call := func(ctx context.Context) error {
		_, err := client.Call(ctx, tool, raw)
		return err
	}
	if err := call(ctx); err != nil { // do not measure a call that always fails
		return cmp.Or(endedBy(ctx), err)
	}
	if warmUp > 0 { // 0 calls would be as many as fit into the time
		load.Run(ctx, load.Options{Callers: o.Callers, Calls: warmUp, For: o.For}, call)
	}
	if ctx.Err() != nil {
		return cmp.Or(endedBy(ctx), ctx.Err())
	}
	o.Kind, o.Done = errorKind, new(atomic.Int64)
	stop := benchProgress(ctx, s, o)
	r := load.Run(ctx, o, call)
	stop()
	if err := endedBy(ctx); err != nil { // the measurement includes time without a connection
		return err
	}
	if ctx.Err() != nil { // keep the results so far, without the calls that were cancelled here
		delete(r.Errors, rpc.CodeCancelled.Kind())
	}
	if s.json {
		err = s.printJSON(benchJSON(tool, o, r))
	} else {
		err = printBench(s.stdout, tool, o, r)
	}
	switch {
	case err != nil || ctx.Err() == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = silentError(exitTimeout)
	default:
		err = silentError(exitInterrupted)
	}
	return err
}

// errorKind groups the errors of calls.
func errorKind(err error) string {
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		if kind := e.Code.Kind(); kind != "" && kind == e.Details().Kind {
			return kind
		}
		return fmt.Sprintf("tool error %d", int(e.Code))
	}
	return "other"
}

// benchProgress draws a bar on a terminal until stop is called.
func benchProgress(ctx context.Context, s *session, o load.Options) (stop func()) {
	if s.json || !isScreen(s.app, s.stderr) {
		return func() {}
	}
	began := time.Now()
	end := every(ctx, 100*time.Millisecond, func() {
		share := min(1, float64(time.Since(began))/float64(o.For))
		if o.Calls > 0 {
			share = max(share, min(1, float64(o.Done.Load())/float64(o.Calls)))
		}
		fmt.Fprint(s.stderr, "\r\x1b[K"+benchLine(share, o.Done.Load(), terminal.Width(s.stderr)))
	})
	return func() {
		end()
		fmt.Fprint(s.stderr, "\r\x1b[K")
	}
}

// benchLine is the progress of a measurement, with a bar if the terminal is wide enough for one.
func benchLine(share float64, calls int64, width int) string {
	text := fmt.Sprintf("%3.0f %%  %d calls", 100*share, calls)
	bar := min(30, width-len(text)-5)
	if bar < 5 {
		return terminal.Short(text, max(width-1, 10))
	}
	full := int(share * float64(bar))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", bar-full) + "] " + text
}

// threeDigits rounds a time to three digits.
func threeDigits(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit)
}

// benchResult is the output of extctl bench --json; times are in microseconds.
type benchResult struct {
	SchemaVersion schemaVersion  `json:"schema_version"`
	Tool          string         `json:"tool"`
	Callers       int            `json:"callers"`
	Calls         int            `json:"calls"`
	Failed        int            `json:"failed"`
	Errors        map[string]int `json:"errors"`
	ElapsedMS     float64        `json:"elapsed_ms"`
	CallsPerSec   float64        `json:"calls_per_sec"`
	P50           float64        `json:"p50_us"`
	P90           float64        `json:"p90_us"`
	P99           float64        `json:"p99_us"`
	Max           float64        `json:"max_us"`
}

func benchJSON(tool string, o load.Options, r load.Result) benchResult {
	us := func(q float64) float64 { return float64(r.Quantile(q).Nanoseconds()) / 1000 }
	return benchResult{
		Tool: tool, Callers: o.Callers, Calls: len(r.Took) + r.Failed(), Failed: r.Failed(), Errors: r.Errors,
		ElapsedMS: float64(r.Elapsed.Microseconds()) / 1000, CallsPerSec: r.Rate(),
		P50: us(0.5), P90: us(0.9), P99: us(0.99), Max: us(1),
	}
}

func printBench(w io.Writer, tool string, o load.Options, r load.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s in %s: %.0f/s\n", tool, words.Plural(o.Callers, "caller"), words.Plural(len(r.Took)+r.Failed(), "call"),
		r.Elapsed.Round(time.Millisecond), r.Rate())
	if len(r.Took) > 0 {
		fmt.Fprintf(&b, "p50 %s  p90 %s  p99 %s  max %s\n\n", threeDigits(r.Quantile(0.5)), threeDigits(r.Quantile(0.9)), threeDigits(r.Quantile(0.99)), threeDigits(r.Quantile(1)))
		most := 0
		for _, bar := range r.Histogram(12) {
			most = max(most, bar.Count)
		}
		for _, bar := range r.Histogram(12) {
			fmt.Fprintf(&b, "%10s  %-40s %d\n", "≤ "+bar.UpTo.String(), strings.Repeat("█", (bar.Count*40+most-1)/most), bar.Count)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, "%d failed: %s\n", r.Errors[kind], kind)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
