package natsd

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats-server/v2/server"
)

// RunConfig runs a server with a nats-server configuration file until ctx ends. It is for what Config cannot express,
// such as a node of a cluster. Like Start it leaves signals to the program and logs to logger (nil discards). It does not
// lock the store.
func RunConfig(ctx context.Context, path string, logger *slog.Logger) error {
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		return fmt.Errorf("NATS configuration: %w", err)
	}
	opts.NoSigs = true
	srv, err := start(opts, logger)
	if err != nil {
		return err
	}
	<-ctx.Done()
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil
}
