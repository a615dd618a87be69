package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/door"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func mcpPreviewCmd(a *app) *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show what extctl mcp offers, and which tools not and why",
		Long: `Show which tools, prompts, resources and skills extctl mcp offers with the same flags, how large the list of tools
is, what was repaired in their descriptors, and which tools are left out and why. The extensions that have prompts or
resources are asked for them.`,
		Example: "  extctl mcp preview --names own",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.chooseView(cmd.Flags().Changed); err != nil {
				return daemon.UsageError{Err: err}
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				c, err := s.catalog(ctx)
				if err != nil {
					return err
				}
				client := mesh.NewClient(s.nc, mesh.ClientOptions{Prefix: string(s.prefix), Catalog: c, WaitReady: -1})
				p, err := door.NewPreview(ctx, o.door.View, c, client)
				if err != nil {
					return daemon.UsageError{Err: err}
				}
				return printPreview(s, p)
			})
		},
	}
	o.addViewFlags(cmd)
	return cmd
}

func printPreview(s *session, p door.Preview) error {
	if s.json {
		return s.printJSON(struct {
			header
			door.Preview
		}{Preview: p})
	}
	var out bytes.Buffer
	for _, t := range p.Tools {
		line := terminal.Clean(t.Name)
		for _, change := range t.Changes {
			line += "; " + change
		}
		fmt.Fprintln(&out, line)
	}
	for _, of := range p.Prompts {
		fmt.Fprintln(&out, "prompt", terminal.Clean(of.Name))
	}
	for _, r := range p.Resources {
		fmt.Fprintln(&out, "resource", terminal.Clean(r.URI))
	}
	for _, r := range p.Templates {
		fmt.Fprintln(&out, "resources", terminal.Clean(r.URI))
	}
	for _, h := range p.Hidden {
		fmt.Fprintf(&out, "not offered: %s/%s: %s\n", h.Extension, terminal.Clean(h.Tool), h.Reason)
	}
	for _, u := range p.Unread {
		fmt.Fprintf(&out, "not read: %s of %s: %s\n", u.List, u.Extension, terminal.Clean(u.Reason))
	}
	// A token is about four bytes of such text.
	fmt.Fprintf(&out, "%d tools, %d KB, about %d tokens", len(p.Tools), (p.Bytes+1023)>>10, p.Bytes/4)
	if n := len(p.Prompts) + len(p.Resources) + len(p.Templates); n > 0 {
		fmt.Fprintf(&out, "; %d prompts, %d resources, %d templates of resources", len(p.Prompts), len(p.Resources), len(p.Templates))
	}
	fmt.Fprintln(&out)
	if p.Searching {
		fmt.Fprintln(&out, "clients get tools to search and call these, instead of the list (--tools all changes that)")
	}
	_, err := s.stdout.Write(out.Bytes())
	return err
}
