package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// extensionJSON is one extension in the output of list and show.
type extensionJSON struct {
	ID        string               `json:"id"`
	Version   string               `json:"version"`
	Transport string               `json:"transport"`
	Dialect   string               `json:"dialect"`
	State     heartbeat.State      `json:"state"`
	Available bool                 `json:"available"`
	Reason    string               `json:"reason"`
	Parent    string               `json:"parent"`
	Tools     int                  `json:"tools"`
	Breaker   *heartbeat.Breaker   `json:"breaker"`
	Instances []wire.InstanceState `json:"instances"`

	Diagnostics []wire.Diagnostic `json:"diagnostics"`
}

func toJSON(e mesh.Extension) extensionJSON {
	out := extensionJSON{
		ID: e.ID, Version: e.Spec.Version, Transport: e.Spec.Transport, Dialect: e.Spec.Dialect, Parent: e.Spec.Parent,
		State: e.State.State, Available: e.State.Available, Reason: e.State.Reason, Breaker: e.State.Breaker,
		Tools: len(e.Spec.Tools), Instances: e.State.Instances,
	}
	if out.Version == "" && len(out.Instances) > 0 {
		out.Version = out.Instances[0].Version // before the first handshake
	}
	out.Diagnostics = append([]wire.Diagnostic{}, e.Spec.Diagnostics...)
	if out.Instances == nil {
		out.Instances = []wire.InstanceState{}
	}
	return out
}

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
	out.Stale = out.age() > staleAfter
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
		all = slices.DeleteFunc(all, func(j extensionJSON) bool { return !f.extension(j) })
		return listing{revisionJSON: revision, name: "extensions", list: all, empty: empty, tables: func() []*terminal.Table { return []*terminal.Table{extensionTable(a, all)} }}, nil
	})
	f.add(cmd, "extensions", "not all instances are ready, or a breaker is open")
	return cmd
}

func extensionTable(a *app, all []extensionJSON) *terminal.Table {
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
			strconv.Itoa(ready)+"/"+strconv.Itoa(len(j.Instances)), reason(j))
	}
	return t
}
