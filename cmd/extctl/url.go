package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

func (a *app) urlCmd() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "url",
		Short: "Print the URL of NATS, with its password, for other programs",
		Long: `Print the URL of the NATS server that extctl uses, with the user and password in it: by default the one of a
running extctl up, whose password extctl itself finds without this. It connects to nothing.

The nats command, examples and most client libraries read it from NATS_URL.`,
		Example: "  export NATS_URL=$(extctl url)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := a.natsURL(data)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					header
					URL string `json:"url"`
				}{URL: url})
			}
			_, err = fmt.Fprintln(a.stdout, url)
			return err
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the `DIR` that a running extctl up was given with --data")
	return cmd
}

// natsURL is the URL that url prints. data is the directory of an extctl up, "" for the server that extctl uses.
func (a *app) natsURL(data string) (string, error) {
	if data == "" {
		target, err := a.nats.Resolve()
		if err != nil {
			return "", err
		}
		return target.URLs(), nil
	}
	up, ok := storelock.Running(daemon.StoreDir(data))
	if !ok || up.URL == "" {
		f := fail(exitNoNATS, "no extctl up is running with its data in %s", filepath.Clean(data))
		f.hint = "start it with: extctl up --data " + shellWord(data)
		return "", f
	}
	return up.URLWithPassword(), nil
}
