package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
)

func versionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(struct {
					header
					Version string `json:"version"`
					Go      string `json:"go"`
				}{Version: daemon.Version(), Go: runtime.Version()})
			}
			_, err := fmt.Fprintln(a.stdout, "extctl", daemon.Version())
			return err
		},
	}
}
