package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// roleVar is the environment variable that makes this program one of the processes of the stage.
const roleVar = "CLUSTER_ROLE"

// busy is how long a call takes at its extension: long enough that a death finds some in flight.
const busy = 10 * time.Millisecond

// play is main of a process of the stage. It ends with a signal, or with its standard input, which is how it
// learns that its parent is gone where the system does not end it.
func play(role string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch role {
	case "natsd":
		proc.UntilInputEnds(stop)
		return natsd.RunConfig(ctx, os.Getenv("NATS_CONFIG"), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	case "native":
		proc.UntilInputEnds(stop)
		return playNative(ctx)
	case "child":
		return rpc.Serve(ctx, os.Stdin, os.Stdout, echoBox())
	}
	return fmt.Errorf("unknown %s %q", roleVar, role)
}

// playNative is the service of its own on NATS.
func playNative(ctx context.Context) error {
	at := func(nc *nats.Conn) { fmt.Fprintf(os.Stderr, "{\"server\":%q}\n", nc.ConnectedUrl()) } // as the programs' logs have it
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name("native"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.DontRandomize(), nats.PingInterval(10*time.Second), nats.MaxPingsOutstanding(2), nats.ReconnectHandler(at))
	if err != nil {
		return err
	}
	defer nc.Close()
	at(nc)
	return mesh.Serve(ctx, nc, mesh.Service{ID: nativeID, Version: "1.0.0", Handler: echoBox()})
}

// echoBox is an extension with one tool.
func echoBox() *mesh.Toolbox {
	box := &mesh.Toolbox{Version: "1.0.0"}
	box.AddRaw("echo", "Gives back what it is given.", nil, func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		select {
		case <-time.After(busy):
		case <-ctx.Done():
		}
		return r.Params, nil
	})
	return box
}
