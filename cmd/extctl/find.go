package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// resolveTimeout is how long a registry may take to say which tool is meant; the catalog itself says it too.
const resolveTimeout = time.Second

// findTool finds a tool by any of its names. The catalog it returns knows the tool's extension and maybe no
// other: to call one tool, extctl asks the registry which one is meant instead of loading all of them, and falls
// back on the whole catalog where no registry answers, or where the error should name the nearest tools.
func (s *session) findTool(ctx context.Context, name string) (*mesh.Catalog, *mesh.Tool, error) {
	id, _, full := strings.Cut(name, "/")
	if !full || mesh.CheckID(id, true) != nil {
		found, err := s.resolve(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		id = found.ID
		if id != "" {
			name = found.String()
		}
	}
	if id != "" {
		c, err := mesh.LoadExtension(ctx, s.nc, mesh.CatalogOptions{Prefix: s.prefix}, id)
		if err != nil {
			return nil, nil, err
		}
		if _, t, ok := c.Tool(name); ok {
			s.warnIfOld(c)
			return c, t, nil
		}
	}
	c, err := s.catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	_, t, err := c.Resolve(name)
	return c, t, err
}

// resolve asks the registry. The zero key means that no registry could tell.
func (s *session) resolve(ctx context.Context, name string) (mesh.ToolKey, error) {
	none := mesh.ToolKey{}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	raw, err := s.ask(ctx, s.prefix.RegistryRPC(), "the registry", "resolve", map[string]string{"name": name})
	if err == nil {
		var found struct {
			ID   string
			Tool *mesh.Tool
		}
		if json.Unmarshal(raw, &found) == nil && found.Tool != nil {
			return mesh.ToolKey{ID: found.ID, Tool: found.Tool.Own}, nil
		}
		return none, nil // an extension's id, say
	}
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return none, nil
	}
	var why struct {
		Kind       string
		Nearest    []string
		Candidates []struct{ Name string }
	}
	if json.Unmarshal(e.Data, &why) != nil {
		return none, nil
	}
	switch why.Kind {
	case "not_found":
		return none, &mesh.NotFoundError{Name: name, Nearest: why.Nearest}
	case "ambiguous":
		amb := &mesh.AmbiguousError{Name: name}
		for _, c := range why.Candidates {
			amb.Candidates = append(amb.Candidates, c.Name)
		}
		return none, amb
	}
	return none, nil
}
