package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func skillsCmd(a *app) *cobra.Command {
	return a.catalogVerb("skills", "List the skills and the hosts that have them", []string{wire.KindSkill}, func(c *mesh.Catalog) listing {
		skills := c.Skills()
		return listing{name: "skills", list: skills, empty: "no bridge has a skill", tables: func() []*terminal.Table {
			t := a.newTable("SKILL", "HOSTS", "DESCRIPTION")
			t.Limit = 80
			for _, k := range skills {
				t.Add(k.Name, strings.Join(k.Hosts, ","), terminal.FirstLine(k.Description))
			}
			return []*terminal.Table{t}
		}}
	})
}
