package bridge

import (
	"context"
	"encoding/json"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// runContainer is the run of an extension without a process of its own, which only contains MCP servers; each of those
// is an extension itself. The container is in the catalog as their parent and lists no tools.
func (s *instance) runContainer(ctx context.Context, ready func()) error {
	hs := &handshake{dialect: manifest.Ext}
	if err := hs.finish(wire.Handshake{ServerVersion: s.workload.announce.Version}, s.workload); err != nil {
		return err
	}
	s.mesh.Update(func(a *wire.Announce) { a.HandshakeHash = hs.hash })
	ready()
	defer s.history.runEnded(nil, nil)
	return s.serveHandler(ctx, container{hs, s.workload.id()}, serve.Options{DrainTimeout: s.workload.limits.drain})
}

// container is the handler of an extension without tools.
type container struct {
	hs *handshake
	id string
}

func (c container) Handle(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
	switch r.Method {
	case "initialize":
		return c.hs.initialize, nil
	case "tools/list":
		return c.hs.toolsList, nil
	case "ping":
		return json.RawMessage("{}"), nil
	}
	return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo,
		"%s only holds MCP servers, which are extensions named %s.<server>; send method %q to one of them", c.id, c.id, r.Method)
}
