package main

import "github.com/spf13/cobra"

func drainCmd(a *app) *cobra.Command {
	return operateCmd(a, "drain", "Stop new calls to an extension's instances; calls in progress finish", "draining")
}
