// Package daemon is what the mains of the three programs share: how they find and keep NATS, how they log,
// how they end, what they answer over HTTP, and which version they are.
//
//	func main() { os.Exit(daemon.Main(run)) }
//
//	func run(ctx context.Context) int {
//		var d daemon.Flags
//		cmd := &cobra.Command{Use: "registry", RunE: func(cmd *cobra.Command, _ []string) error {
//			return d.Run(cmd, "registry", func(ctx context.Context, p daemon.Process) error {
//				return registry.Run(ctx, p.NC, registry.Config{Prefix: p.Prefix, Logger: p.Logger})
//			})
//		}}
//		d.AddFlags(cmd)
//		return daemon.Execute(ctx, cmd)
//	}
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// Main calls run with a context that the first SIGINT or SIGTERM ends, and returns its exit code. A second
// signal meets the default action: the process ends at once.
func Main(run func(ctx context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx)
}

// Flags are the flags of a long-lived program.
type Flags struct {
	NATS NATSFlags
	Log  LogFlags
	HTTP string // --http: where the health endpoints listen; empty: nowhere
}

// AddFlags defines the flags on cmd.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	f.NATS.AddFlags(cmd)
	f.Log.AddFlags(cmd)
	cmd.Flags().StringVar(&f.HTTP, "http", "", "serve /healthz, /readyz and /metrics on this `ADDR` (host:port)")
}

// Process is what a program runs with.
type Process struct {
	NC     *nats.Conn
	Prefix mesh.Prefix
	Logger *slog.Logger
	Health *Health // set its Ready and Metrics before its first request comes; it is run beside the program
}

// Run sets up logging, waits for NATS and runs f beside the health endpoints. It returns when both have ended:
// with f's error, or nil where ctx's end was the reason.
func (f *Flags) Run(cmd *cobra.Command, name string, run func(context.Context, Process) error) error {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	logger, err := f.Log.New(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	prefix, err := mesh.ParsePrefix(f.NATS.Prefix)
	if err != nil {
		return UsageError{err}
	}
	target, err := f.NATS.Resolve()
	if err != nil {
		return err
	}
	health := &Health{Addr: f.HTTP, Logger: logger}
	healthDone := make(chan struct{})
	go func() { // ends with ctx or, where it cannot listen, ends the program; awaited below
		defer close(healthDone)
		if err := health.Run(ctx); err != nil {
			cancel(err)
		}
	}()
	defer func() { cancel(nil); <-healthDone }()
	nc, err := target.Connect(ctx, ConnectOptions{Name: name, Logger: logger, Wait: true})
	if err == nil {
		health.connected.Store(nc)
		logger.Info("connected to NATS", "server", nc.ConnectedUrlRedacted(), "from", target.Source, "version", Version())
		err = run(ctx, Process{NC: nc, Prefix: prefix, Logger: logger, Health: health})
		nc.Close()
	}
	parent := cmd.Context()
	switch {
	case parent.Err() == nil && ctx.Err() != nil:
		return context.Cause(ctx) // the health endpoints'
	case parent.Err() != nil && errors.Is(err, parent.Err()):
		return nil
	}
	return err
}

// UsageError is a mistake on the command line; the exit code is 2.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap is the mistake.
func (e UsageError) Unwrap() error { return e.Err }

// Execute runs a daemon's command with the process's arguments and returns the exit code: 0, 1 for a failure
// and 2 for a mistake on the command line.
func Execute(ctx context.Context, cmd *cobra.Command) int {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.Version = Version()
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{err} })
	if cmd.Args == nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			return nil
		}
	}
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: error: %v\n", cmd.Name(), err)
	if errors.As(err, new(UsageError)) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: hint: see %s --help\n", cmd.Name(), cmd.Name())
		return 2
	}
	return 1
}
