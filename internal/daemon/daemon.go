// Package daemon contains what the main packages of the three programs share: connecting to NATS, logging, shutdown,
// HTTP endpoints and the version. The main function of a long-lived program runs a Program:
//
//	func main() {
//		var forget time.Duration
//		os.Exit(daemon.Main(daemon.Program{
//			Name:    "registry",
//			Summary: "registry keeps the mesh's catalog.",
//			Flags: func(fs *flag.FlagSet) {
//				fs.DurationVar(&forget, "forget-after", 24*time.Hour, "…")
//			},
//			Run: func(ctx context.Context, p daemon.Process) error {
//				return registry.Run(ctx, p.NC, registry.Config{Prefix: p.Prefix, Logger: p.Logger, ForgetAfter: forget})
//			},
//		}))
//	}
package daemon

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/memlimit"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
)

// Program is a long-lived program: flags → Run → exit code.
type Program struct {
	Name    string
	Summary string // the first lines of --help
	Flags   func(*flag.FlagSet)

	// Check validates the program's own flags, and the files they name, before the program waits for NATS, so that
	// mistakes are reported immediately. Errors become UsageErrors. It may be nil.
	Check func(*slog.Logger) error

	// Run is the program's work. It returns when ctx ends. p.NC is connected, and is closed after Run.
	Run func(ctx context.Context, p Process) error
}

// Process is what a Program's Run receives.
type Process struct {
	NC      *nats.Conn
	Prefix  wire.Prefix
	Secrets Credentials // that NC was connected with
	Logger  *slog.Logger
	Health  *Health // for the program's readiness and metrics
}

// Main runs p with the process's arguments until SIGINT, SIGTERM or SIGHUP, and returns the exit code.
func Main(p Program) int {
	SurviveClosedOutput()
	memlimit.Obey()
	ctx, stop := Signals(context.Background())
	defer stop()
	return p.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Signals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP, which a closed terminal sends. A signal more than a second later has the
// default action: the process exits immediately. Signals within that second count as the first one, because
// terminals, timeout(1) and process managers signal both the process and its group.
func Signals(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	stopLater(ctx, stop)
	return ctx, stop
}

// SurviveClosedOutput makes a write to a closed stdout or stderr fail instead of ending the process: it continues to run when
// its output is not read any more, and stops in order. With `| tee FILE`, Ctrl-C ends the reader, too.
func SurviveClosedOutput() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// stopLater calls stop when ctx has ended for sameSignal.
func stopLater(ctx context.Context, stop func()) {
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
}

const sameSignal = time.Second

// UsageError is a mistake on the command line, or in a file that it names; the exit code is 2.
type UsageError struct {
	Err  error
	Hint string // what to do about it; empty: refer to --help
}

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the mistake.
func (e UsageError) Unwrap() error { return e.Err }

// Execute runs the program with args and returns its exit code: 0, also if ctx ended it, 1 for a failure, 2 for a
// mistake on the command line.
func (p Program) Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := p.run(ctx, args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	}
	fmt.Fprintf(stderr, "%s: error: %v\n", p.Name, err)
	wrong, ok := errors.AsType[UsageError](err)
	if !ok {
		return 1
	}
	fmt.Fprintf(stderr, "%s: hint: %s\n", p.Name, cmp.Or(wrong.Hint, "see "+p.Name+" --help"))
	return 2
}

// asUsage wraps err in a UsageError, unless it is one already.
func asUsage(err error) error {
	if errors.As(err, new(UsageError)) {
		return err
	}
	return UsageError{Err: err}
}

// settings are the flags that every program has.
type settings struct {
	nats    NATSFlags
	log     LogFlags
	http    string
	version bool
}

func (p Program) parse(args []string, stdout io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the returned error has the whole message
	fs.Usage = func() {}
	s.nats.AddFlags(fs)
	s.log.AddFlags(fs)
	fs.StringVar(&s.http, "http", "", "serve /healthz, /readyz and /metrics on `ADDR` (host:port)")
	fs.BoolVar(&s.version, "version", false, "print the version")
	if p.Flags != nil {
		p.Flags(fs)
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s\n\nUsage: %s [flags]\n\n", p.Summary, p.Name)
		printFlags(stdout, fs)
		return s, err
	case err != nil:
		return s, UsageError{Err: err}
	case fs.NArg() > 0:
		return s, UsageError{Err: fmt.Errorf("unexpected argument %q", fs.Arg(0))}
	}
	return s, nil
}

// printFlags lists the flags with two dashes, as the documentation writes them; both are accepted.
func printFlags(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%-28s %s", f.Name+" "+value, usage)
		if !slices.Contains([]string{"", "false", "0", "0s"}, f.DefValue) { // for these, the usage text explains the default
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

// run returns when the program and its health endpoints have ended.
func (p Program) run(parent context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := p.parse(args, stdout)
	if err != nil {
		return err
	}
	if s.version {
		fmt.Fprintln(stdout, p.Name, Version())
		return nil
	}
	logger, err := s.log.New(stderr)
	if err != nil {
		return err
	}
	prefix, err := wire.ParsePrefix(s.nats.Prefix)
	if err != nil {
		return UsageError{Err: err}
	}
	target, err := s.nats.Resolve()
	if err != nil {
		return err
	}
	if p.Check != nil {
		if err := p.Check(logger); err != nil {
			return asUsage(err)
		}
	}
	defer announceStop(parent, p.Name, logger)()
	ctx, cancel := context.WithCancelCause(parent)
	health := &Health{Addr: s.http, Logger: logger}
	healthDone := make(chan struct{})
	go func() { // ends with ctx, or ends the program if it cannot listen; awaited below
		defer close(healthDone)
		if err := health.Run(ctx); err != nil {
			cancel(fmt.Errorf("--http: %w", err))
		}
	}()
	defer func() { cancel(nil); <-healthDone }()
	err = p.connected(ctx, target, Process{Prefix: prefix, Secrets: target.Secrets, Logger: logger, Health: health})
	switch {
	case parent.Err() == nil && ctx.Err() != nil:
		return context.Cause(ctx) // an error of the health endpoints
	case parent.Err() != nil && errors.Is(err, parent.Err()):
		return nil
	}
	return err
}

// connected connects to NATS, waiting if necessary, and runs the program.
func (p Program) connected(ctx context.Context, t Target, proc Process) error {
	nc, err := t.Connect(ctx, ConnectOptions{
		Name: p.Name, Logger: proc.Logger, Wait: true, OnDenied: func(err error) { proc.Health.denied(proc.Prefix, err) },
	})
	if err != nil {
		return err
	}
	defer nc.Close()
	proc.NC = nc
	proc.Health.connected.Store(nc)
	proc.Logger.Info(p.Name+" is running", "version", Version(), "server", natsconn.Server(nc), "from", t.Source,
		"prefix", string(proc.Prefix))
	return p.Run(ctx, proc)
}
