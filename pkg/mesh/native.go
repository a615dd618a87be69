package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Service is an extension that runs as a service of its own on the mesh. ID, Version and Handler are required.
type Service struct {
	ID      string // ^[a-z][a-z0-9_-]*$, at most 64 bytes
	Version string // strict semver, at most 64 bytes

	// Handler answers initialize, ping, tools and hooks; a *Toolbox does.
	Handler rpc.Handler

	Name, Description string        // at most 512 bytes and 4 KiB
	Priority          int32         // of its hooks: lower is called first
	Prefix            string        // of the mesh's subjects; default "ext"
	SubjectPrefix     string        // of the subjects of this service; default Prefix
	Passthrough       bool          // calls carry {agent_id, session_id}
	HeartbeatInterval time.Duration // default 15 s
	Logger            *slog.Logger  // default: discard, but panics of the Handler go to standard error

	CallTimeout    time.Duration // of a call without a timeout of its own; includes the wait for a free place. Default 30 s
	MaxCallTimeout time.Duration // the longest timeout that a caller may set. Default 1 h
	MaxInflight    int           // concurrent calls; further ones are answered with CodeOverloaded. Default 256
	DrainTimeout   time.Duration // how long calls in flight may take after ctx has ended. Default 30 s
}

// Serve puts e on the mesh until ctx ends: it announces it, sends heartbeats, and handles calls. Then it takes no new calls,
// completes those in flight (for at most DrainTimeout), sends a shutdown notice and returns nil.
//
// It does not close nc. With a connection from [Connect] it continues after every outage. Its error is that the Service is
// not valid, with all its problems, or nats.ErrConnectionClosed if the connection was closed before ctx ended. If NATS does
// not permit a subscription, the catalog shows the service as failed until it is permitted. This needs a connection from
// [Connect] or [ConnectOptions] that has no custom dialer or in-process server and still has its error handler. On another one the service is
// ready, and receives no calls.
func Serve(ctx context.Context, nc *nats.Conn, e Service) error {
	if err := e.check(); err != nil {
		return err
	}
	announce, err := e.announce(ctx)
	if err != nil {
		return err
	}
	node := serve.NewPublisher(nc, serve.PublisherOptions{Prefix: wire.Prefix(e.Prefix), HeartbeatInterval: e.HeartbeatInterval, Logger: e.Logger})
	slot := node.Join(announce)
	onMesh, leave := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	var nodeErr, presenceErr error
	serving, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { // owned by Serve; ends with onMesh, or fails and ends the serving
		nodeErr = node.Run(onMesh)
		if ctx.Err() != nil { // the caller that ended ctx may have closed the connection already
			nodeErr = unlessClosed(nodeErr)
		}
		if nodeErr != nil {
			stop()
		}
	})
	wg.Go(func() { // owned by Serve; ends with onMesh. If the connection is closed, node.Run returns that
		if presenceErr = unlessClosed(slot.Run(onMesh)); presenceErr != nil {
			stop()
		}
	})
	defer context.AfterFunc(serving, func() { slot.Apply(instance.Event{Kind: instance.Stop}) })()
	handler := e.Handler
	if e.Logger == nil {
		handler = rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
			return jsonrpc.ProtectLoud(ctx, e.Handler, r)
		})
	}
	err = slot.Serve(serving, handler, serve.Options{
		CallTimeout: e.CallTimeout, MaxCallTimeout: e.MaxCallTimeout, MaxInflight: e.MaxInflight, DrainTimeout: e.DrainTimeout,
	})
	leave() // the shutdown notice is published when the calls in flight are answered
	wg.Wait()
	if nc.Status() == nats.CONNECTED {
		_ = nc.FlushTimeout(time.Second) // if the shutdown notice is lost, the registries miss the heartbeats
	}
	return errors.Join(err, nodeErr, presenceErr)
}

func unlessClosed(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) {
		return nil
	}
	return err
}

func (e *Service) check() error {
	prefix, err := wire.ParsePrefix(e.Prefix) // NATS would take a space for the end of a subject, and a * for all
	errs := []error{err}
	if _, err := semver.StrictNewVersion(e.Version); err != nil && e.Version != "" {
		errs = append(errs, fmt.Errorf("the version %.64q is not semver, such as 1.2.3: %w", e.Version, err))
	}
	if e.Handler == nil {
		errs = append(errs, errors.New("an extension needs a handler"))
	}
	a := e.announcement()
	errs = append(errs, a.Check(prefix)) // the registry would refuse it
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("mesh: %w", err)
	}
	e.Prefix = string(prefix)
	return nil
}

func (e *Service) announcement() wire.Announce {
	host, _ := os.Hostname() // for people; an unknown one is no fault
	return wire.Announce{
		ID: e.ID, Version: e.Version, SubjectPrefix: e.SubjectPrefix, Host: host, Transport: "nats", Dialect: "ext",
		Features: []string{wire.FeatureStream, wire.FeatureCancel, wire.FeatureInstance},
		About:    wire.About{Name: e.Name, Description: e.Description, Priority: e.Priority},
		Context:  wire.Context{Passthrough: e.Passthrough},
	}
}

// announce calls initialize of the handler, as the registry will, and returns the announcement with the hash of the result,
// by which the registry detects changed tools.
func (e *Service) announce(ctx context.Context) (wire.Announce, error) {
	a := e.announcement()
	result, err := jsonrpc.Protect(ctx, e.Handler, &rpc.Request{ID: []byte("0"), Method: "initialize", Params: []byte("{}")})
	if err != nil {
		return a, fmt.Errorf("mesh: %s: the handler does not answer initialize: %w", e.ID, err)
	}
	h, err := wire.ParseHandshake(result)
	if err != nil {
		return a, fmt.Errorf("mesh: %s: %w", e.ID, err)
	}
	a.HandshakeHash, err = wire.HandshakeHash(h.Tools, h.Hooks)
	return a, err
}
