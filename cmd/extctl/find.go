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

// resolveTimeout is how long a registry may take to say which tool is meant; the catalog itself says it too.
const resolveTimeout = time.Second

// findTool finds a tool by any of its names. The catalog it returns knows the tool's extension and maybe no
// other: to call one tool, extctl asks the registry which one is meant instead of loading all of them, and falls
// back on the whole catalog where no registry answers, or where it knows no such name.
func (s *session) findTool(ctx context.Context, name string) (*mesh.Catalog, *mesh.Tool, error) {
	var unknown *mesh.NotFoundError // the registry's word
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
		t, err = ownName(c, name, e)
	}
	return c, t, err
}

// ownName finds a tool by the name that its extension gave it: no agent sees those, but people read them in a manifest
// and type them. That is enough where only one extension has such a tool. notFound is the error where none has; it
// gets the nearest, too.
func ownName(c *mesh.Catalog, name string, notFound *mesh.NotFoundError) (*mesh.Tool, error) {
	var found []*mesh.Tool
	var own []string
	registered := map[string]string{}
	amb := &mesh.AmbiguousError{Name: name}
	for _, e := range c.All() {
		for i := range e.Spec.Tools {
			t := &e.Spec.Tools[i]
			own, registered[t.Own] = append(own, t.Own), t.Name
			if t.Own == name {
				found, amb.Candidates = append(found, t), append(amb.Candidates, t.Name)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		for _, near := range nearest.Words(name, own) {
			if len(notFound.Nearest) < 3 && !slices.Contains(notFound.Nearest, registered[near]) {
				notFound.Nearest = append(notFound.Nearest, registered[near])
			}
		}
		return nil, notFound
	}
	return nil, amb
}

// oneExtension loads what the catalog has of one extension.
func (s *session) oneExtension(ctx context.Context, id string) (*mesh.Catalog, error) {
	ctx, cancel := s.denied.watch(ctx, directGet)
	defer cancel()
	c, err := mesh.LoadExtension(ctx, s.nc, mesh.CatalogOptions{Prefix: s.prefix}, id)
	return c, s.denied.explain(err)
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
