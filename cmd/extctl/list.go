package main

import (
	"context"
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
