package main

import "github.com/spf13/cobra"

func (a *app) drainCmd() *cobra.Command {
	return a.operateCmd("drain", "Let an extension's instances finish their calls and take no new ones", "draining")
}
