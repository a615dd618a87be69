package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// resolveTimeout limits the request to the registry; after it, the name is resolved from the whole catalog.
const resolveTimeout = time.Second

// findTool finds a tool by any of its names. To call one tool, extctl sends the name to the registry and loads only
// that extension, which is then the only one in the returned catalog. If no registry replies or it does not find the
// name, findTool loads the whole catalog.
func (s *session) findTool(ctx context.Context, name string) (*mesh.Catalog, *mesh.Tool, error) {
	var unknown *mesh.NotFoundError // the registry's reply
	id, _, full := strings.Cut(name, "/")
	if !full || mesh.CheckID(id, true) != nil {
		found, err := s.resolve(ctx, name)
		if err != nil && !errors.As(err, &unknown) {
			return nil, nil, err
		}
		if id = found.ID; id != "" {
			name = found.String()
		}
	}
	if id != "" {
		c, err := s.oneExtension(ctx, id)
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
	if e, ok := errors.AsType[*mesh.NotFoundError](err); ok {
		if unknown != nil && len(e.Nearest) == 0 {
			e = unknown
		}
		t, err = findByLocalName(c, name, e)
	}
	return c, t, err
}

// findByLocalName finds a tool by the name that its extension uses. Agents see registered names only, but people read the
// local name in a manifest and type it. It must be unique among the extensions. notFound is the error if no tool has the
// name; findByLocalName adds similar names to it.
func findByLocalName(c *mesh.Catalog, name string, notFound *mesh.NotFoundError) (*mesh.Tool, error) {
	var found []*mesh.Tool
	var local []string
	registered := map[string]string{}
	amb := &mesh.AmbiguousError{Name: name}
	for _, e := range c.All() {
		for i := range e.Spec.Tools {
			t := &e.Spec.Tools[i]
			local, registered[t.Own] = append(local, t.Own), t.Name
			if t.Own == name {
				found, amb.Candidates = append(found, t), append(amb.Candidates, t.Name)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		for _, near := range nearest.Words(name, local) {
			if len(notFound.Nearest) < 3 && !slices.Contains(notFound.Nearest, registered[near]) {
				notFound.Nearest = append(notFound.Nearest, registered[near])
			}
		}
		return nil, notFound
	}
	return nil, amb
}

// oneExtension loads the catalog's documents of one extension.
func (s *session) oneExtension(ctx context.Context, id string) (*mesh.Catalog, error) {
	ctx, cancel := s.denied.watch(ctx, directGet)
	defer cancel()
	c, err := mesh.LoadExtension(ctx, s.nc, mesh.CatalogOptions{Prefix: s.prefix}, id)
	return c, s.denied.explain(err)
}

// resolve sends a tool's name to the registry. It returns the zero key if no registry resolved it.
func (s *session) resolve(ctx context.Context, name string) (mesh.ToolKey, error) {
	none := mesh.ToolKey{}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "resolve", map[string]string{"name": name})
	if err == nil {
		var found struct {
			ID   string
			Tool *mesh.Tool
		}
		if json.Unmarshal(raw, &found) == nil && found.Tool != nil {
			return mesh.ToolKey{ID: found.ID, Tool: found.Tool.Own}, nil
		}
		return none, nil // the name is not a tool's, for example an extension's id
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
