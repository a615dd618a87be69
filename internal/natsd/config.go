package natsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

// RunConfig runs a server with a nats-server configuration file, with JetStream, until ctx ends. It serves for what
// Config cannot express, such as a node of a cluster. Like Start it locks the store, leaves signals to the program,
// and logs to logger (nil discards). It returns errors in the file and Start's.
func RunConfig(ctx context.Context, path string, logger *slog.Logger) error {
	opts, err := server.ProcessConfigFile(path)
	switch {
	case err != nil:
		return fmt.Errorf("NATS configuration: %w", err)
	case !opts.JetStream || opts.StoreDir == "":
		return fmt.Errorf("NATS configuration %s: want jetstream with a store_dir", path)
	}
	opts.NoSigs = true
	if err := os.MkdirAll(opts.StoreDir, 0o700); err != nil {
		return fmt.Errorf("NATS configuration: %w", err)
	}
	held, err := storelock.Acquire(opts.StoreDir)
	if err != nil {
		return err
	}
	srv, err := start(opts, logger)
	if err != nil {
		return errors.Join(err, held.Release())
	}
	s := &Server{srv: srv, lock: held}
	defer s.Shutdown()
	if err := held.Note(storelock.Info{PID: os.Getpid(), URL: s.ClientURL(), Since: time.Now().UTC()}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
