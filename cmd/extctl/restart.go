package main

import "github.com/spf13/cobra"

func (a *app) restartCmd() *cobra.Command {
	return a.operateCmd("restart", "Restart an extension's instances", "restarting")
}
