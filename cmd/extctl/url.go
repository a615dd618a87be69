package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/terminal"
)

func urlCmd(a *app) *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "url",
		Short: "Print the URL of NATS, with its password, for other programs",
		Long: `Print the URL of the NATS server that extctl uses, including user and password. By default this is the server of a
running extctl up; extctl itself reads that password automatically. The command does not log in.

The nats command, the examples and most client libraries read NATS_URL.`,
		Example: "  export NATS_URL=$(extctl url)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := natsURL(a, data)
			if err != nil {
				return err
			}
			if a.json {
				return a.printObject(member{"url", url})
			}
			_, err = fmt.Fprintln(a.stdout, url)
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the `DIR` of a running extctl up that was started with --data")
	return cmd
}

// natsURL is the URL that url prints. data is the data directory of an extctl up; "" means the server that extctl uses.
func natsURL(a *app, data string) (string, error) {
	if data == "" {
		target, err := a.nats.Resolve()
		if err != nil {
			return "", err
		}
		if up, running := storelock.Running(daemon.StoreDir("")); running && target.IsEndedUp() {
			return up.URLWithPassword(), nil
		}
		return target.URLs(), nil
	}
	up, ok := storelock.Running(daemon.StoreDir(data))
	if !ok || up.URL == "" {
		return "", fail(exitNoNATS, "no extctl up is running with the data directory %s", filepath.Clean(data)).
			with("start it with: extctl up --data "+terminal.ShellWord(data), nil)
	}
	return up.URLWithPassword(), nil
}
