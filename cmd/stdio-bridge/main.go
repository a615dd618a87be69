// Command stdio-bridge runs the extensions of one host and makes them available on the mesh.
//
//	stdio-bridge --search-path ./extensions
//	stdio-bridge --config config/extensions.yaml --name web-3 --http 127.0.0.1:8222
//
// It waits for NATS. On SIGTERM or Ctrl-C it stops everything that it started; if it is killed, its guard process stops
// the extensions. docs/operations.md describes how to run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/gate"
)

func main() {
	child.Protect()
	child.MaybeGuard()
	os.Exit(daemon.Main(program()))
}

func program() daemon.Program {
	var file, name, state, secrets string
	var search []string
	var settings config.Config
	var awaitWatchdog, stopWatchdog func()
	read := func(log *slog.Logger) (config.Config, error) {
		c, err := bridge.Settings(file, search, log)
		if secrets != "" {
			c.Secrets = config.Secrets(secrets)
		}
		return c, err
	}
	return daemon.Program{
		Name:    "stdio-bridge",
		Summary: "Runs the extensions of this host and makes them available on the mesh.",
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&file, "config", "", "extensions.yaml `FILE` (default "+config.DefaultPath+" if it exists)")
			fs.Func("search-path", "look for extensions in `DIR` instead of the file's search_paths; may be repeated", func(dir string) error {
				search = append(search, dir)
				return nil
			})
			fs.StringVar(&name, "name", bridge.DefaultName(), "this bridge's `NAME` on the mesh")
			fs.StringVar(&secrets, "secrets", "", "`MODE` of extensions.secrets, instead of what the file says: inherit or granted")
			fs.StringVar(&state, "state-dir", bridge.DefaultStateDir(), "`DIR` in which each extension gets its own state directory")
		},
		Check: func(log *slog.Logger) (err error) {
			if err := bridge.CheckName(name); err != nil {
				return fmt.Errorf("--name: %w", err)
			}
			if m := config.Secrets(secrets); m != "" && m != config.SecretsInherit && m != config.SecretsGranted {
				return fmt.Errorf("--secrets: %q is not a mode; want inherit or granted", secrets)
			}
			if err := bridge.CheckDirs(search); err != nil {
				return fmt.Errorf("--search-path: %w", err)
			}
			if settings, err = read(log); err != nil {
				return daemon.UsageError{Err: err, Hint: "fix the file; nothing was started"}
			}
			awaitWatchdog, stopWatchdog = bridge.StartWatchdog(log) // starts while the connection to NATS is made
			return nil
		},
		Run: func(ctx context.Context, p daemon.Process) error {
			reread := func() (config.Config, error) { return read(p.Logger) }
			host, _ := os.Hostname() // for display only; may be empty
			defer stopWatchdog()
			daemon.HeapFloor(8 << 20)
			b := bridge.New(p.NC, bridge.Config{
				Name: name, Host: host, Prefix: p.Prefix, Version: daemon.Version(), Settings: settings,
				Reread: reread, StateDir: state, Watchdog: awaitWatchdog, Logger: p.Logger,
				Mesh: gate.Credentials(p.Secrets),
			})
			p.Health.Ready(b.Ready)
			p.Health.Metrics(b.WriteMetrics)
			return b.Run(ctx)
		},
	}
}
