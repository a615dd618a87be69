// Command scale measures how the registry and its followers bear size: many extensions, many changes, many who
// listen.
//
//	go run ./bench/scale                        # all of it, some minutes
//	go run ./bench/scale -quick                 # a look at a small one, seconds
//	go run ./bench/scale -write docs/scale.md   # into its place in the page
//
// The stage is a NATS server with JetStream and a registry, each a process of its own; this program plays all
// extensions by speaking the wire (fleet.go), and all who listen. It needs Linux for the processes' memory and
// processor time; elsewhere those say 0. It is run from the module's root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/extmesh/extmesh/bench/internal/page"
	"github.com/extmesh/extmesh/bench/internal/proc"
)

// options are the command line's.
type options struct {
	extensions, tools int
	listeners         int           // counting subscriptions
	followers         int           // full ones
	changes           int           // of one extension, for a median
	flapping          int           // extensions
	span              time.Duration // of what is measured for a while
	instances         []int
	bin               string // of the built programs
}

func main() {
	if role := os.Getenv(roleVar); role != "" {
		exit(play(role))
	}
	o := options{}
	flag.IntVar(&o.extensions, "extensions", 10_000, "extensions in the large catalog")
	flag.IntVar(&o.tools, "tools", 10, "tools of each")
	flag.IntVar(&o.listeners, "listeners", 1000, "connections that count changes")
	flag.IntVar(&o.followers, "followers", 5, "full followers")
	flag.IntVar(&o.changes, "changes", 200, "changes of one extension, of which the median and the 99th percentile are given")
	flag.IntVar(&o.flapping, "flapping", 1000, "extensions that change their state once a second")
	flag.DurationVar(&o.span, "span", 30*time.Second, "how long beats and flapping are measured")
	sizes := flag.String("instances", "100,1000,10000,100000", "sizes of the meshes whose beats and changes are compared")
	quick := flag.Bool("quick", false, "everything small")
	write := flag.String("write", "", "put the tables into their place in `FILE` as well")
	flag.Parse()
	for _, s := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			exit(fmt.Errorf("-instances %q: want numbers, separated by commas", *sizes))
		}
		o.instances = append(o.instances, n)
	}
	if *quick {
		o.extensions, o.listeners, o.changes, o.flapping = min(o.extensions, 500), min(o.listeners, 50), min(o.changes, 20), min(o.flapping, 100)
		o.span, o.instances = min(o.span, 3*time.Second), []int{100, 1000}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o, *write))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run makes the tables. Nothing is written unless all of it could be measured.
func run(ctx context.Context, o options, write string) error {
	bin, err := os.MkdirTemp("", "extmesh-scale-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if err := proc.Build(ctx, bin, "./cmd/registry", "./cmd/extctl"); err != nil {
		return err
	}
	o.bin = bin
	r := &report{}
	r.heading(o)
	for _, part := range []func(context.Context, options, *report) error{large, sizes} {
		if err := part(ctx, o, r); err != nil {
			return err
		}
	}
	if write == "" {
		return nil
	}
	return page.Put(write, "scale", r.text())
}

// large is the large catalog: built, listened to, asked, and shaken.
func large(ctx context.Context, o options, r *report) error {
	s, err := newStage(ctx, o.bin)
	if err != nil {
		return err
	}
	defer s.close()
	r.table("the large catalog: "+plural(o.extensions, "extension")+" of "+plural(o.tools, "tool"), "what", "figure")
	for _, part := range []struct {
		name    string
		measure func(context.Context, *stage, options, *report) error
	}{{"build", build}, {"rest", rest}, {"listen", listen}, {"follow", follow}, {"ask", ask}, {"flap", flap}} {
		r.step(part.name)
		if err := part.measure(ctx, s, o, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
