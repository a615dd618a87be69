package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func hostsCmd(a *app) *cobra.Command {
	return a.catalogVerb("hosts", "List the bridges, and the extensions that they could not start with the reason", []string{wire.KindHost},
		func(c *mesh.Catalog) listing {
			hosts := c.Hosts()
			return listing{name: "hosts", list: hosts, empty: "no bridge has reported to this mesh; run stdio-bridge on a host, or extctl up", tables: func() []*table { return a.hostTables(hosts) }}
		})
}

// hostTables are the table of the bridges and that of what they could not start.
func (a *app) hostTables(hosts []wire.Host) []*table {
	t := a.newTable("BRIDGE", "HOST", "STATE", "VERSION", "SINCE", "EXTENSIONS", "PROBLEMS")
	problems := a.newTable("BRIDGE", "ID", "KIND", "PATH", "MESSAGE")
	for _, h := range hosts {
		t.add(h.Bridge, h.Host, hostState(h), h.Version, ago(h.Since), strconv.Itoa(len(h.Extensions)+h.ExtensionsLeftOut), strconv.Itoa(len(h.Problems)+h.ProblemsLeftOut))
		for _, p := range h.Problems {
			problems.add(h.Bridge, p.ID, p.Kind, p.Path, p.Message)
		}
		if h.ProblemsLeftOut > 0 {
			problems.add(h.Bridge, "", "", "", fmt.Sprintf("%d more problems do not fit into the report; run extctl doctor on the host", h.ProblemsLeftOut))
		}
	}
	return []*table{t, problems}
}

// hostState is the state of a bridge, and for a lost one since when. SINCE is the bridge's start.
func hostState(h wire.Host) string {
	switch h.State {
	case heartbeat.Lost:
		return fmt.Sprintf("lost %s", ago(h.StateSince))
	case "":
		return "-" // it has never replied to the registry
	}
	return string(h.State)
}
