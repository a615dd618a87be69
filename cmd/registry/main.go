// Command registry maintains the mesh's catalog: it receives announcements and heartbeats, and publishes which extensions
// exist and their state. Any number of replicas run side by side with no configuration except NATS; one of them leads
// and writes.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func main() { os.Exit(daemon.Main(program())) }

func program() daemon.Program {
	var cfg registry.Config
	return daemon.Program{
		Name:    "registry",
		Summary: "Maintains the mesh's catalog of extensions. Run any number of replicas; one of them leads and writes.",
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&cfg.Name, "name", "", "`NAME` of this replica, for display (default the host's name)")
			fs.DurationVar(&cfg.Heartbeat.Interval, "heartbeat-interval", heartbeat.DefaultInterval, "`INTERVAL` of heartbeats that do not state their own")
			fs.Float64Var(&cfg.Heartbeat.Grace, "heartbeat-grace-factor", heartbeat.DefaultGrace, "an instance is lost after `FACTOR` heartbeat intervals without a heartbeat")
			fs.DurationVar(&cfg.Heartbeat.ForgetAfter, "forget-after", 24*time.Hour, "remove an extension from the catalog after this `DURATION` without a heartbeat; negative: never")
			fs.IntVar(&cfg.Replicas, "replicas", 0, "`COPIES` of the catalog in JetStream (default 3 in a cluster, 1 on a single server)")
		},
		Check: func(*slog.Logger) error { return check(cfg) },
		Run: func(ctx context.Context, p daemon.Process) error {
			cfg.Prefix, cfg.Logger, cfg.Version = p.Prefix, p.Logger, daemon.Version()
			return run(ctx, p, registry.New(p.NC, cfg))
		},
	}
}

func check(cfg registry.Config) error {
	h := cfg.Heartbeat
	switch {
	case h.Interval < heartbeat.MinInterval || h.Interval > heartbeat.MaxInterval:
		return fmt.Errorf("--heartbeat-interval %v: want %v to %v", h.Interval, heartbeat.MinInterval, heartbeat.MaxInterval)
	case !(h.Grace >= 1.5 && h.Grace <= 100):
		return fmt.Errorf("--heartbeat-grace-factor %v: want 1.5 to 100", h.Grace)
	case h.ForgetAfter == 0:
		return fmt.Errorf("--forget-after 0: want a duration, or a negative one for never")
	case cfg.Replicas < 0 || cfg.Replicas > 5:
		return fmt.Errorf("--replicas %d: want 1 to 5", cfg.Replicas)
	}
	return nil
}

// statusTimeout limits /readyz and /metrics requests while the registry is starting or busy.
const statusTimeout = 2 * time.Second

func run(ctx context.Context, p daemon.Process, r *registry.Registry) error {
	p.Health.Ready(func() error {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		return r.Ready(ctx)
	})
	p.Health.Metrics(func(w io.Writer) {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		if s, err := r.Status(ctx); err == nil {
			s.WriteMetrics(w)
		}
	})
	return r.Run(ctx)
}
