package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// pingJSON is one line of ping.
type pingJSON struct {
	ID        string  `json:"id"`
	OK        bool    `json:"ok"`
	ElapsedMS float64 `json:"elapsed_ms"`
	Error     string  `json:"error"`

	err error
}

func pingCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ping [ID]",
		Short: "Send a ping to one extension or to all",
		Args:  cobra.MaximumNArgs(1),
		RunE: a.onMesh(requestTimeout, func(ctx context.Context, s *session, args []string) error {
			if len(args) == 1 {
				c, _, err := s.extension(ctx, args[0])
				if err != nil {
					return err
				}
				return printPings(s, pingAll(ctx, s, c, args))
			}
			c, err := s.catalog(ctx)
			if err != nil {
				return err
			}
			return printPings(s, pingAll(ctx, s, c, ids(c)))
		}),
		ValidArgsFunction: a.completeIDs,
	}
}

// pingAll sends a ping to all targets, at most 32 at a time: more would measure their own load.
func pingAll(ctx context.Context, s *session, c *mesh.Catalog, targets []string) []pingJSON {
	client := mesh.NewClient(s.nc, mesh.ClientOptions{Prefix: string(s.prefix), Catalog: c, WaitReady: -1})
	out := make([]pingJSON, len(targets))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(32, len(targets)) {
		wg.Go(func() { // ends when next is closed
			for i := range next {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				start := time.Now()
				_, err := client.CallExt(ctx, targets[i], "ping", nil)
				cancel()
				out[i] = pingJSON{ID: targets[i], OK: err == nil, err: err,
					ElapsedMS: float64(time.Since(start).Microseconds()) / 1000}
				if err != nil {
					out[i].Error = err.Error()
				}
			}
		})
	}
	for i := range targets {
		next <- i
	}
	close(next)
	wg.Wait()
	return out
}

// printPings prints all results. The exit code is the code of the first failure.
func printPings(s *session, results []pingJSON) error {
	var failed error
	for _, r := range results {
		if r.err != nil {
			failed = r.err
			break
		}
	}
	if len(results) == 1 && failed != nil {
		return failed
	}
	if s.json {
		if err := s.printObject(member{"results", results}); err != nil {
			return err
		}
	} else {
		t := s.newTable("ID", "REPLY", "TIME", "ERROR")
		for _, r := range results {
			answer := "ok"
			if !r.OK {
				answer = "none"
			}
			t.Add(r.ID, answer, fmt.Sprintf("%.2f ms", r.ElapsedMS), terminal.Short(r.Error, 80))
		}
		if err := t.Print(s.stdout); err != nil {
			return err
		}
	}
	if failed != nil {
		return silentError(exitCode(failed))
	}
	return nil
}
