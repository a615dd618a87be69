// Command cluster kills and stops what a mesh is made of, one after the other, and writes a table of what became
// of the catalog and of the calls.
//
//	go run ./bench/cluster                      # everything: about a quarter of an hour
//	go run ./bench/cluster -quick               # the cheap rows
//	go run ./bench/cluster -rows leader,fence   # rows by a part of their names
//	go run ./bench/cluster -write docs/faults.md # into its place in the page
//
// The stage is three NATS servers in a cluster, two registries, two bridges with the same extension and a service
// of its own on NATS, each a process; the catalog's bucket has three replicas. This program follows the catalog
// fifty times and calls tools 200 times a second all the while. docs/faults.md holds its output.
//
// Everything that it starts ends with it, on Linux even when it is killed. It is run from the module's root.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/bench/internal/page"
)

func main() {
	if role := os.Getenv(roleVar); role != "" {
		exit(play(role))
	}
	rows := flag.String("rows", "", "only rows whose name contains one of these `WORDS`, separated by commas (stream-leader, meta-leader, leader, fence, standby, bridge, child, service; kill, stop)")
	quick := flag.Bool("quick", false, "only the rows that take no more than seconds")
	logs := flag.String("logs", "", "keep the programs' logs in `DIR`")
	write := flag.String("write", "", "put the table into its place in `FILE` as well; a row that could not be run is said to be NOT RUN")
	flag.Parse()
	if *write != "" && (*quick || *rows != "") {
		exit(fmt.Errorf("-write is for the whole table, without -rows and -quick"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, choice{words: words(*rows), quick: *quick}, *logs, *write))
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// choice is which rows are to be run.
type choice struct {
	words []string // parts of names; none: all
	quick bool
}

// leavesOut says why a row is not run, or "".
func (c choice) leavesOut(r row) string {
	named := len(c.words) == 0
	for _, w := range c.words {
		named = named || strings.Contains(r.name(), w)
	}
	switch {
	case !named:
		return "not among -rows " + strings.Join(c.words, ",")
	case c.quick && !r.cheap:
		return "left out by -quick"
	}
	return ""
}

// run sets the stage and makes the table. A row that fails is a row of the table, and the error in the end.
func run(ctx context.Context, c choice, logs, write string) error {
	s, err := newStage(logs)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.set(ctx); err != nil {
		return err
	}
	var text strings.Builder
	out := io.MultiWriter(os.Stdout, &text)
	fmt.Fprintf(out, "%s, %s\n%s\n", time.Now().Format(time.DateOnly), s.heading(), tableHead)
	failed, err := s.fill(ctx, c, out)
	if err != nil {
		return err
	}
	fmt.Fprint(out, legend(allRows()))
	if write != "" {
		if err := page.Put(write, "faults", text.String()); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d rows failed", failed)
	}
	return nil
}

// fill makes the rows, and counts those that failed.
func (s *stage) fill(ctx context.Context, c choice, out io.Writer) (failed int, err error) {
	for _, r := range allRows() {
		if why := c.leavesOut(r); why != "" {
			fmt.Fprintln(out, notRun(r, why))
			continue
		}
		fmt.Fprintln(os.Stderr, "cluster:", r.name())
		o, err := s.perform(ctx, r)
		if err == nil {
			fmt.Fprintln(out, o)
			continue
		}
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
		failed++
		fmt.Fprintln(out, notRun(r, err.Error()))
		if err := s.recover(ctx); err != nil {
			return failed, fmt.Errorf("after %s: %w", r.name(), err)
		}
	}
	return failed, nil
}
