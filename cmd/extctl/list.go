package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// revisionJSON is the state of the catalog that a result was made from.
type revisionJSON struct {
	CatalogID string `json:"catalog_id"`
	Revision  uint64 `json:"revision"`
	AgeMS     *int64 `json:"age_ms"` // since a registry last maintained the catalog; nil if none ever has
	Stale     bool   `json:"stale"`  // it may be out of date
}

func revisionOf(c *mesh.Catalog) revisionJSON {
	id, rev := c.Revision()
	out := revisionJSON{CatalogID: id, Revision: rev}
	if age := c.Age(); age != math.MaxInt64 {
		ms := age.Milliseconds()
		out.AgeMS = &ms
	}
	out.Stale = out.age() > health.StaleAfter
	return out
}

func (r revisionJSON) age() time.Duration {
	if r.AgeMS == nil {
		return math.MaxInt64
	}
	return time.Duration(*r.AgeMS) * time.Millisecond
}

func listCmd(a *app) *cobra.Command {
	var f filter
	cmd := a.listVerb("list", "List the extensions with their state", func(ctx context.Context, s *session) (listing, error) {
		if err := f.checkBridges(ctx, s); err != nil {
			return listing{}, err
		}
		all, revision, err := readOutline(ctx, s)
		if err != nil {
			return listing{}, err
		}
		s.warnIfOld(revision.age())
		empty := "there are no extensions; `extctl hosts` shows what bridges could not start and why"
		if f.set() && len(all) > 0 {
			empty = fmt.Sprintf("no extension matches; there are %d", len(all))
		}
		all = slices.DeleteFunc(all, func(j health.Extension) bool { return !f.extension(j) })
		return listing{revisionJSON: revision, name: "extensions", list: all, empty: empty, tables: func() []*terminal.Table { return []*terminal.Table{extensionTable(a, all)} }}, nil
	})
	f.add(cmd, "extensions", "not all instances are ready, or a breaker is open")
	return cmd
}

func extensionTable(a *app, all []health.Extension) *terminal.Table {
	t := a.newTable("ID", "VERSION", "STATE", "TRANSPORT", "TOOLS", "INSTANCES", "REASON")
	t.Limit = 100
	for _, j := range all {
		ready := 0
		for _, i := range j.Instances {
			if i.State == heartbeat.Ready {
				ready++
			}
		}
		t.Add(j.ID, j.Version, string(j.State), j.Transport, strconv.Itoa(j.Tools),
			strconv.Itoa(ready)+"/"+strconv.Itoa(len(j.Instances)), j.Summary())
	}
	return t
}

// readOutline lists the extensions by the registry's method catalog, without their tools: the schemas of a large mesh are
// over a hundred megabytes. If no registry answers, it reads the bucket.
func readOutline(ctx context.Context, s *session) ([]health.Extension, revisionJSON, error) {
	if all, revision, err := registryOutline(ctx, s); err == nil {
		return all, revision, nil
	}
	c, err := s.load(ctx, mesh.CatalogOptions{NoSchemas: true})
	if err != nil {
		return nil, revisionJSON{}, err
	}
	all := []health.Extension{}
	for _, e := range c.All() {
		all = append(all, health.Of(e))
	}
	return all, revisionOf(c), nil
}

// outlinePage is one page of the registry's outline. Extensions are decoded while the next page is requested.
type outlinePage struct {
	revisionJSON
	NextCursor string          `json:"next_cursor"`
	Extensions json.RawMessage `json:"extensions"`
}

var errNoOutline = errors.New("the registry has no outline of the catalog")

// registryOutline reads the outline from a registry. The revision and the age are those of the first page.
func registryOutline(ctx context.Context, s *session) (all []health.Extension, revision revisionJSON, err error) {
	var pages []chan decodedPage
	for cursor := ""; ; {
		page, err := readOutlinePage(ctx, s, cursor)
		if err != nil {
			return nil, revision, err
		}
		if len(pages) == 0 {
			revision = page.revisionJSON
		}
		decoded := make(chan decodedPage, 1)
		pages = append(pages, decoded)
		go func() { decoded <- decodeOutline(page.Extensions) }() // ends when the page is decoded
		if page.NextCursor <= cursor {
			break
		}
		cursor = page.NextCursor
	}
	all = []health.Extension{}
	for _, p := range pages {
		page := <-p
		if page.err != nil {
			return nil, revision, page.err
		}
		all = append(all, page.extensions...)
	}
	return all, revision, nil
}

func readOutlinePage(ctx context.Context, s *session, cursor string) (page outlinePage, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "catalog", map[string]any{"cursor": cursor, "outline": true})
	if err == nil {
		err = json.Unmarshal(raw, &page)
	}
	if err == nil && page.CatalogID == "" { // it has not read the bucket yet
		err = errNoOutline
	}
	return page, err
}

type decodedPage struct {
	extensions []health.Extension
	err        error
}

func decodeOutline(text json.RawMessage) (page decodedPage) {
	if len(text) == 0 { // a page without extensions
		return page
	}
	var entries []struct {
		ID    string        `json:"id"`
		Spec  mesh.Spec     `json:"spec"`
		State mesh.StateDoc `json:"state"`
		Tools *int          `json:"tools"`
	}
	if page.err = json.Unmarshal(text, &entries); page.err != nil {
		return page
	}
	for _, e := range entries {
		if e.Tools == nil {
			page.err = errNoOutline
			return page
		}
		j := health.Of(mesh.Extension{ID: e.ID, Spec: &e.Spec, State: &e.State})
		j.Tools = *e.Tools
		page.extensions = append(page.extensions, j)
	}
	return page
}
