package main

import "github.com/spf13/cobra"

func (a *app) drainCmd() *cobra.Command {
	return a.operateCmd("drain", "Stop new calls to an extension's instances; calls in progress finish", "draining")
}
