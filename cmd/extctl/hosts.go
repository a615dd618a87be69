package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func hostsCmd(a *app) *cobra.Command {
	var f filter
	cmd := a.listVerb("hosts", "List the bridges, and the extensions that they could not start with the reason", func(ctx context.Context, s *session) (listing, error) {
		c, err := s.catalog(ctx, wire.KindHost)
		if err != nil {
			return listing{}, err
		}
		hosts := c.Hosts()
		if err := f.knownBridges(hosts); err != nil {
			return listing{}, err
		}
		empty := "no bridge has reported to this mesh; run stdio-bridge on a host, or extctl up"
		if f.set() && len(hosts) > 0 {
			empty = fmt.Sprintf("no bridge matches; there are %d", len(hosts))
		}
		hosts = slices.DeleteFunc(hosts, func(h wire.Host) bool { return !f.host(h) })
		l := listing{revisionJSON: revisionOf(c), name: "hosts", list: hosts, empty: empty}
		l.tables = func() []*terminal.Table { return hostTables(a, hosts) }
		return l, nil
	})
	f.add(cmd, "bridges", "they are lost, or could not start an extension")
	return cmd
}

// hostTables are the table of the bridges, with those that are lost first, and that of what they could not start.
func hostTables(a *app, hosts []wire.Host) []*terminal.Table {
	t := a.newTable("BRIDGE", "HOST", "STATE", "VERSION", "SINCE", "EXTENSIONS", "PROBLEMS")
	problems := a.newTable("BRIDGE", "ID", "KIND", "PATH", "MESSAGE")
	hosts = slices.Clone(hosts)
	slices.SortStableFunc(hosts, func(x, y wire.Host) int {
		return cmp.Compare(lostFirst(x.State), lostFirst(y.State))
	})
	for _, h := range hosts {
		t.Add(h.Bridge, h.Host, hostState(h), h.Version, words.Ago(h.Since), strconv.Itoa(len(h.Extensions)+h.ExtensionsLeftOut), strconv.Itoa(len(h.Problems)+h.ProblemsLeftOut))
		for _, p := range h.Problems {
			problems.Add(h.Bridge, p.ID, p.Kind, p.Path, p.Message)
		}
		if h.ProblemsLeftOut > 0 {
			problems.Add(h.Bridge, "", "", "", fmt.Sprintf("%d more problems do not fit into the report; run extctl doctor on the host", h.ProblemsLeftOut))
		}
	}
	return []*terminal.Table{t, problems}
}

func lostFirst(s heartbeat.State) int {
	if s == heartbeat.Lost {
		return 0
	}
	return 1
}

// hostState is the state of a bridge, and for a lost one since when. SINCE is the bridge's start.
func hostState(h wire.Host) string {
	switch h.State {
	case heartbeat.Lost:
		if h.Reason == wire.ReasonStopped {
			return fmt.Sprintf("stopped %s", words.Ago(h.StateSince))
		}
		return fmt.Sprintf("lost %s", words.Ago(h.StateSince))
	case "":
		return "-" // it has never replied to the registry
	}
	return string(h.State)
}
