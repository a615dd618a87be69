// Command bench measures extmesh with real processes and prints the tables of three pages of the documentation, in
// Markdown:
//
//	go run ./bench performance   docs/performance.md: what a call costs, compared with a bare NATS request and a bare pipe
//	go run ./bench scale         docs/scale.md: how the registry and its followers handle large catalogs
//	go run ./bench faults        docs/faults.md: what is lost when a process is killed or stopped
//
// Each builds the programs, starts NATS servers, registries, bridges and extensions as processes of their own, and
// stops all of them before it returns. Run it from the root of the module. The memory and processor time of processes
// are read from /proc: on systems other than Linux they are 0.
//
// What one package does by itself is measured by its own benchmarks: go test -bench . ./pkg/rpc, for example.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// setup is what all measurements share.
type setup struct {
	bin        string         // directory of the built programs
	logs       string         // directory for the logs of all processes; empty: they are deleted
	only       *regexp.Regexp // selects rows by their name, the first column
	quick      bool
	env        string // more variables of the bridge in performance
	extensions int    // in the large catalog of scale
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if role := os.Getenv(roleVar); role != "" {
		stop() // signals end it
		err = attempt(role, func() { play(role) })
	} else {
		err = run(ctx, os.Args[1:])
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run runs the measurement that the first argument names, or prints the help.
func run(ctx context.Context, args []string) error {
	set, fs := setup{only: regexp.MustCompile("")}, flag.NewFlagSet("go run ./bench performance|scale|faults", flag.ContinueOnError)
	fs.StringVar(&set.logs, "logs", "", "keep the logs of all processes in `DIR`")
	fs.TextVar(set.only, "only", set.only, "performance, faults: measure only the rows whose name, the first column, matches `REGEXP`; rows that are measured together have the name of the first")
	fs.BoolVar(&set.quick, "quick", false, "smaller meshes, fewer rounds, only the rows that take seconds: a minute or two")
	fs.StringVar(&set.env, "bridge-env", "", "performance: more variables for the bridge, separated by spaces, for example `GOGC=200`")
	fs.IntVar(&set.extensions, "extensions", 10_000, "scale: extensions in the large catalog")
	var name string
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	measure := map[string]func(context.Context, setup){"performance": measurePerformance, "scale": measureScale, "faults": measureFaults}[name]
	if measure == nil {
		fs.Usage()
		return fmt.Errorf("unknown measurement %q: want performance (about eight minutes), scale (ten) or faults (twenty)", name)
	}
	return attempt(name, func() {
		set.bin = must(os.MkdirTemp("", "extmesh-bench-bin-"))
		defer os.RemoveAll(set.bin)
		build := exec.CommandContext(ctx, "go", "build", "-o", set.bin+string(filepath.Separator), "./cmd/...", "./bench")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the container images
		if out, err := build.CombinedOutput(); err != nil {
			fail("go build (run this from the root of the module): %w\n%s", err, out)
		}
		measure(ctx, set)
	})
}

// failure is what check panics with. A measurement with an error has no result, so errors end it where they occur;
// attempt turns them into an ordinary error. Only the goroutine that called attempt may fail this way.
type failure struct{ error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func attempt(what string, f func()) (err error) {
	defer func() {
		v := recover()
		failed, ok := v.(failure)
		if ok {
			err = fmt.Errorf("%s: %w", what, failed.error)
		} else if v != nil {
			panic(v)
		}
	}()
	f()
	return nil
}

// head prints the head of a Markdown table.
func head(columns ...string) {
	row(columns...)
	fmt.Println("|" + strings.Repeat("---|", len(columns)))
}

func row(cells ...string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") }

// heading prints when, where and how the tables below it were measured. In a virtual machine that includes how long an
// idle processor polls before it halts: waking a halted one is most of the time of a lone call.
func heading(how string) {
	model := "unknown"
	cpus, _ := os.ReadFile("/proc/cpuinfo") // absent on other systems
	for line := range strings.Lines(string(cpus)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	if ns, err := os.ReadFile("/sys/module/haltpoll/parameters/guest_halt_poll_ns"); err == nil {
		model += ", guest_halt_poll_ns=" + strings.TrimSpace(string(ns))
	}
	fmt.Printf("%s, %s/%s, %d processors (%s), %s; %s\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), model, runtime.Version(), how)
}

// step prints on standard error what is measured now.
func step(what string) { fmt.Fprintln(os.Stderr, "bench:", time.Now().Format(time.TimeOnly), what) }

// series is one measured value for each round.
type series []float64

func (s series) median() float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }

// spread is the lowest and the highest value, or nothing for a single one.
func (s series) spread(format string) string {
	if len(s) < 2 {
		return ""
	}
	return fmt.Sprintf(format+" – "+format, slices.Min(s), slices.Max(s))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ms is a duration in milliseconds, or in seconds if it is long, with the digits that carry meaning.
func ms(d time.Duration) string {
	switch v := millis(d); {
	case v < 10:
		return fmt.Sprintf("%.1f ms", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
