// Command bench measures what the product adds to the two things it cannot avoid, a bare NATS request and a bare
// pipe to a child: they are measured in the same run, in the same interleaved rounds, and the product is given as a
// ratio to them.
//
//	go run ./bench                                       # the table, about eight minutes
//	go run ./bench -quick                                # a look, a minute
//	go run ./bench -only 'alone'                         # rows whose name has that
//	go run ./bench -into docs/performance.md -run first  # the table, into the place of that name in the file
//	go run ./bench -only '16 KiB' -bridge-env GOGC=200   # what an option of the runtime makes of the bridge
//
// It builds the programs, runs a NATS server, a registry, a bridge, a bare micro service and the children as
// processes of their own and calls from one more, itself. It needs Linux for the processes' memory and processor
// time; elsewhere those columns say 0. docs/performance.md holds its output and says how to read it.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/extmesh/extmesh/bench/internal/page"
)

// options are the command line's.
type options struct {
	rounds int           // medians are over so many
	span   time.Duration // of each figure in each round
	only   string
	fleet  int // extensions on one bridge
	large  int // bytes of the large answer
	into   string
	run    string
	plots  string
	env    []string // of the bridge, on top of this program's
}

func main() {
	if role := os.Getenv("BENCH_ROLE"); role != "" {
		exit(play(role))
	}
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 7, "interleaved rounds; medians are given")
	flag.DurationVar(&o.span, "span", 400*time.Millisecond, "how long each figure is measured in each round")
	flag.StringVar(&o.only, "only", "", "only the rows whose name contains `TEXT`")
	flag.IntVar(&o.fleet, "fleet", 1000, "extensions in the row about many")
	flag.IntVar(&o.large, "large", 25_000_000, "bytes of the large answer")
	flag.StringVar(&o.into, "into", "", "write the table into the place named by -run in `FILE`")
	flag.StringVar(&o.run, "run", "first", "the `NAME` of the place")
	flag.StringVar(&o.plots, "plots", "", "draw the growth into `DIR`: minutes more")
	env := flag.String("bridge-env", "", "variables of the bridge's environment, e.g. `GOGC=200`, separated by spaces")
	quick := flag.Bool("quick", false, "short rounds, few of them, and a small fleet")
	profile := flag.String("cpuprofile", "", "write a profile of this program, the caller, to `FILE`")
	flag.Parse()
	o.env = strings.Fields(*env)
	if *quick {
		o.rounds, o.span, o.fleet = 3, 150*time.Millisecond, min(o.fleet, 100)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			exit(err)
		}
	}
	err := bench(o)
	pprof.StopCPUProfile()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bench makes the table, and the plots if they are asked for.
func bench(o options) error {
	s := &stage{env: o.env}
	defer s.close()
	if err := s.set(); err != nil {
		return err
	}
	t := newTable(o)
	steps := []struct {
		name string
		run  func(*stage, *table) error
	}{
		{"calls", (*stage).calls}, {"half of the peak", (*stage).half}, {"embedded", (*stage).embedded},
		{"large", (*stage).largeAnswer}, {"slow beside fast", (*stage).beside}, {"allocations", (*stage).allocations},
		{"start", (*stage).start}, {"memory", (*stage).memory}, {"fleet", (*stage).fleet},
	}
	for _, step := range steps {
		if err := step.run(s, t); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	fmt.Println("\n" + t.processes())
	if o.into != "" {
		if err := page.Put(o.into, o.run, t.text()); err != nil {
			return err
		}
	}
	if o.plots == "" {
		return nil
	}
	return s.growth(o)
}
