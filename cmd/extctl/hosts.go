package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func (a *app) hostsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "hosts",
		Short: "List the bridges, and the extensions that they could not start with the reason",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				c, err := s.catalog(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(struct {
						header
						revisionJSON
						Hosts []wire.Host `json:"hosts"`
					}{revisionJSON: revisionOf(c), Hosts: c.Hosts()})
				}
				return a.printHosts(c.Hosts())
			})
		},
	}
}

func (a *app) printHosts(hosts []wire.Host) error {
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
	if err := t.print(a.stdout); err != nil || len(problems.rows) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	return problems.print(a.stdout)
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
