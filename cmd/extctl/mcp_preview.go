package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/door"
	"github.com/extmesh/extmesh/internal/terminal"
)

func mcpPreviewCmd(a *app) *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show which tools extctl mcp offers, and which not and why",
		Long: `Show which tools extctl mcp offers with the same flags, how large their list is, what was repaired in their
descriptors, and which tools are left out and why.`,
		Example: "  extctl mcp preview --names own",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.chooseView(); err != nil {
				return daemon.UsageError{Err: err}
			}
			return a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				c, err := s.catalog(ctx)
				if err != nil {
					return err
				}
				p, err := door.NewPreview(o.door.View, c.All(), time.Now())
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
	for _, t := range p.Tools {
		line := terminal.Clean(t.Name)
		for _, change := range t.Changes {
			line += "; " + change
		}
		fmt.Fprintln(s.stdout, line)
	}
	for _, h := range p.Hidden {
		fmt.Fprintf(s.stdout, "not offered: %s/%s: %s\n", h.Extension, terminal.Clean(h.Tool), h.Reason)
	}
	// A token is about four bytes of such text.
	fmt.Fprintf(s.stdout, "%d tools, %d KB, about %d tokens\n", len(p.Tools), (p.Bytes+1023)>>10, p.Bytes/4)
	if p.Searching {
		fmt.Fprintln(s.stdout, "clients get tools to search and call these, instead of the list (--tools all changes that)")
	}
	return nil
}
