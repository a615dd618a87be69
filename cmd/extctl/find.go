package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// resolveTimeout limits the request to the registry; after it, the name is resolved from the whole catalog.
const resolveTimeout = time.Second

// findTool finds a tool by any of its names. The registry's answer to resolve has all that a call needs; the returned
// catalog has only that tool. If no registry answers, findTool reads the bucket: for <id>/<local name> the extension's
// documents, otherwise the whole catalog. A name that the registry does not find may be a local one, for which findTool
// reads the whole catalog, too.
func (s *session) findTool(ctx context.Context, name string) (*mesh.Catalog, *wire.Tool, error) {
	var unknown *mesh.NotFoundError // the registry's reply
	c, t, err := s.resolve(ctx, name)
	switch {
	case t != nil:
		s.warnIfOld(c.Age())
		return c, t, nil
	case err != nil && !errors.As(err, &unknown):
		return nil, nil, err
	}
	if id, _, full := strings.Cut(name, "/"); full && wire.CheckID(id, true) == nil {
		c, err := s.oneExtension(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		if _, t, ok := c.Tool(name); ok {
			s.warnIfOld(c.Age())
			return c, t, nil
		}
	}
	if c, err = s.catalog(ctx); err != nil {
		return nil, nil, err
	}
	_, t, err = c.Resolve(name)
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
func findByLocalName(c *mesh.Catalog, name string, notFound *mesh.NotFoundError) (*wire.Tool, error) {
	var found []*wire.Tool
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
	c, err := mesh.LoadExtension(ctx, s.nc, mesh.CatalogOptions{Prefix: string(s.prefix), AskStreamInfo: true}, id)
	return c, s.denied.explain(err)
}

// resolve sends a tool's name to the registry and returns a catalog of that tool. Without an error, tool is nil if no
// registry answered, or if the name is not a tool's.
func (s *session) resolve(ctx context.Context, name string) (c *mesh.Catalog, tool *wire.Tool, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "resolve", map[string]string{"name": name})
	if err == nil {
		c, tool, err = mesh.CatalogOfResolved(s.nc, mesh.CatalogOptions{Prefix: string(s.prefix)}, raw)
		if err != nil {
			return nil, nil, nil // the bucket is read instead
		}
		return c, tool, nil
	}
	return nil, nil, notResolved(name, err)
}

// notResolved is the error of a name that the registry does not know or that several tools have. It is nil if err says
// nothing about the name.
func notResolved(name string, err error) error {
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return nil
	}
	var why struct {
		Kind       string
		Nearest    []string
		Candidates []struct{ Name string }
	}
	if json.Unmarshal(e.Data, &why) != nil {
		return nil
	}
	switch why.Kind {
	case "not_found":
		return &mesh.NotFoundError{Name: name, Nearest: why.Nearest}
	case "ambiguous":
		amb := &mesh.AmbiguousError{Name: name}
		for _, c := range why.Candidates {
			amb.Candidates = append(amb.Candidates, c.Name)
		}
		return amb
	}
	return nil
}
