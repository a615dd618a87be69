package main

import "github.com/spf13/cobra"

func (a *app) upCmd() *cobra.Command { return &cobra.Command{Use: "up"} }
