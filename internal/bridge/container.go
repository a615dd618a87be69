package bridge

import (
	"context"
	"encoding/json"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// containerLife is the life of an extension that runs nothing itself and only holds MCP servers, which are members
// of their own: it stands in the catalog, as their parent, and answers that it has no tools.
func (s *instance) runContainer(ctx context.Context, ready func()) error {
	hs := &handshake{dialect: manifest.Ext}
	if err := hs.finish(mesh.Handshake{ServerVersion: s.workload.announce.Version}, s.workload); err != nil {
		return err
	}
	s.mesh.Update(func(a *mesh.Announce) { a.HandshakeHash = hs.hash })
	ready()
	defer s.history.runEnded(nil, nil)
	return s.serveHandler(ctx, container{hs, s.workload.id()}, mesh.ServeOptions{DrainTimeout: s.workload.limits.drain})
}

// container answers for an extension without tools.
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
		"%s only holds MCP servers, which are extensions named %s.<server>; method %q is theirs to answer", c.id, c.id, r.Method)
}
