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
		return listing{name: "skills", list: skills, empty: "no bridge has a skill", tables: func() []*table {
			t := a.newTable("SKILL", "HOSTS", "DESCRIPTION")
			t.limit = 80
			for _, k := range skills {
				t.add(k.Name, strings.Join(k.Hosts, ","), firstLine(k.Description))
			}
			return []*table{t}
		}}
	})
}
