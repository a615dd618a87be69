package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
)

func (a *app) skillsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "skills",
		Short: "List the skills and the hosts that have them",
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
						Skills []wire.Skill `json:"skills"`
					}{revisionJSON: revisionOf(c), Skills: c.Skills()})
				}
				t := a.newTable("SKILL", "HOSTS", "DESCRIPTION")
				for _, k := range c.Skills() {
					t.add(k.Name, strings.Join(k.Hosts, ","), short(k.Description, 80))
				}
				return t.print(a.stdout)
			})
		},
	}
}
