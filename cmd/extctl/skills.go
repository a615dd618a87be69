package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func skillsCmd(a *app) *cobra.Command {
	return a.catalogVerb("skills", "List the skills and the hosts that have them", []string{wire.KindSkill}, func(c *mesh.Catalog) listing {
		skills := c.Skills()
		return listing{name: "skills", list: skills, tables: func() []*table {
			t := a.newTable("SKILL", "HOSTS", "DESCRIPTION")
			for _, k := range skills {
				t.add(k.Name, strings.Join(k.Hosts, ","), short(k.Description, 80))
			}
			return []*table{t}
		}}
	})
}
