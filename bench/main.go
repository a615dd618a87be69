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
	"syscall"
)

// setup is what all measurements share.
type setup struct {
	bin  string // directory of the built programs
	logs string // directory for the logs of all processes; empty: they are deleted
}

// measurement runs a subcommand after its flags were parsed. It fails by check.
type measurement func(context.Context, setup)

var commands = []struct {
	name, about string
	flags       func(*flag.FlagSet) measurement
}{
	{"performance", "what a call costs, compared with a bare NATS request and a bare pipe: about eight minutes", performanceFlags},
	{"scale", "how the registry and its followers handle large catalogs: about ten minutes", scaleFlags},
	{"faults", "what is lost when a process is killed or stopped: about twenty minutes", faultsFlags},
}

func main() {
	if role := os.Getenv(roleVar); role != "" {
		exit(attempt(role, func() { play(role) }))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:]))
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run runs the subcommand that the first argument names, or prints the help of all.
func run(ctx context.Context, args []string) error {
	help := len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help"
	for _, c := range commands {
		fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
		logs := fs.String("logs", "", "keep the logs of all processes in `DIR`")
		measure := c.flags(fs)
		fs.Usage = func() {
			fmt.Fprintf(os.Stderr, "go run ./bench %s [flags]: %s\n", c.name, c.about)
			fs.PrintDefaults()
		}
		switch {
		case help:
			fs.Usage()
		case args[0] == c.name:
			if err := fs.Parse(args[1:]); err != nil {
				return err
			}
			return attempt(c.name, func() { withPrograms(ctx, func(bin string) { measure(ctx, setup{bin, *logs}) }) })
		}
	}
	if help {
		return nil
	}
	return fmt.Errorf("unknown subcommand %q: want performance, scale or faults", args[0])
}

// withPrograms builds the programs into a directory that exists until use returns.
func withPrograms(ctx context.Context, use func(bin string)) {
	bin := must(os.MkdirTemp("", "extmesh-bench-bin-"))
	defer os.RemoveAll(bin)
	build := exec.CommandContext(ctx, "go", "build", "-o", bin+string(filepath.Separator), "./cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the container images
	if out, err := build.CombinedOutput(); err != nil {
		fail("go build (run this from the root of the module): %w\n%s", err, out)
	}
	use(bin)
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
		if v := recover(); v != nil {
			failed, ok := v.(failure)
			if !ok {
				panic(v)
			}
			err = fmt.Errorf("%s: %w", what, failed.error)
		}
	}()
	f()
	return nil
}

// onlyFlag is a flag that selects rows by their name, the first column; without it all rows match.
func onlyFlag(fs *flag.FlagSet) *regexp.Regexp {
	var only regexp.Regexp
	fs.TextVar(&only, "only", regexp.MustCompile(""), "measure only the rows whose name, the first column, matches `REGEXP`")
	return &only
}
