package main

import (
	"cmp"
	"context"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/localmesh"
	"github.com/extmesh/extmesh/internal/sourcewatch"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// watchSources looks at the files of the extensions, before one starts, and returns the part that restarts those whose files
// change.
func (m *localMesh) watchSources(ctx context.Context) localmesh.Part {
	local := bridge.NewLocal(m.bridge)
	w := sourcewatch.New(ctx, sourcewatch.Config{
		Scan:   func(ctx context.Context) []discovery.Candidate { return local.Scan(ctx).Candidates },
		Ignore: m.bridge.Settings.IgnoreDirs, Note: m.note,
	})
	return func(ctx context.Context, nc *nats.Conn) error {
		s := &session{app: m.app, nc: nc, prefix: m.bridge.Prefix}
		w.Run(ctx, func(ctx context.Context, c discovery.Candidate) error { return restartParts(ctx, s, m.bridge.Name, c) })
		return nil
	}
}

// restartParts restarts the programs of an extension and its members on a bridge.
func restartParts(ctx context.Context, s *session, bridge string, c discovery.Candidate) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var failed error
	for _, part := range append([]*manifest.Manifest{c.Manifest}, c.Manifest.Members()...) {
		if part.Container() || part.Transport.Type != manifest.Stdio {
			continue
		}
		err := requestBridge[operated](ctx, s, bridge, "restart", map[string]any{"id": part.Plugin.ID}).err
		if exitCode(err) == exitNotFound { // the bridge does not run it: it is disabled, or its manifest has just been added
			err = nil
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}
