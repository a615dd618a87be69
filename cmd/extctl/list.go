package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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

// revisionJSON is the catalog's revision that a result was made from.
type revisionJSON struct {
	CatalogID string `json:"catalog_id"`
	Revision  uint64 `json:"revision"`
}

func revisionOf(c *mesh.Catalog) revisionJSON {
	id, rev := c.Revision()
	return revisionJSON{id, rev}
}

func listCmd(a *app) *cobra.Command {
	return a.listVerb("list", "List the extensions with their state", func(ctx context.Context, s *session) (listing, error) {
		all, revision, err := s.outline(ctx)
		if err != nil {
			return listing{}, err
		}
		return listing{revisionJSON: revision, name: "extensions", list: all, empty: "there are no extensions; `extctl hosts` shows what bridges could not start and why", tables: func() []*table { return []*table{a.extensionTable(all)} }}, nil
	})
}

// reason is why the extension is in its state, and the codes of diagnostics that need attention; show has their messages.
func reason(j extensionJSON) string {
	parts := []string{}
	if j.Reason != "" {
		parts = append(parts, j.Reason)
	}
	for _, d := range j.Diagnostics {
		if d.Level != "info" && !slices.Contains(parts, d.Code) {
			parts = append(parts, d.Code)
		}
	}
	return strings.Join(parts, ", ")
}

func (a *app) extensionTable(all []extensionJSON) *table {
	t := a.newTable("ID", "VERSION", "STATE", "TRANSPORT", "TOOLS", "INSTANCES", "REASON")
	for _, j := range all {
		ready := 0
		for _, i := range j.Instances {
			if i.State == heartbeat.Ready {
				ready++
			}
		}
		t.add(j.ID, j.Version, string(j.State), j.Transport, strconv.Itoa(j.Tools),
			strconv.Itoa(ready)+"/"+strconv.Itoa(len(j.Instances)), short(reason(j), 60))
	}
	return t
}
