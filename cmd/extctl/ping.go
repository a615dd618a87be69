package main

import (
	"cmp"
	"context"
	"errors"
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
		RunE: a.onMesh(pingsTimeout, func(ctx context.Context, s *session, args []string) error {
			c, targets, err := pinged(ctx, s, args)
			if err != nil {
				return explainTimeout(err, cmp.Or(s.timeout, requestTimeout))
			}
			results := pingAll(ctx, s, c, targets)
			if errors.Is(ctx.Err(), context.Canceled) { // interrupted
				return ctx.Err()
			}
			return printPings(s, results, len(args) == 1)
		}),
		ValidArgsFunction: a.completeIDs,
	}
}

// pinged reads the catalog and returns what is to be pinged: one extension, or all.
func pinged(ctx context.Context, s *session, args []string) (c *mesh.Catalog, targets []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.timeout, requestTimeout))
	defer cancel()
	if len(args) == 1 {
		c, _, err = s.extension(ctx, args[0])
		return c, args, err
	}
	if c, err = s.catalog(ctx); err != nil {
		return nil, nil, err
	}
	return c, ids(c), nil
}

// pingsTimeout limits the command; each ping has a limit of its own.
const pingsTimeout = time.Hour

// pingTimeout is how long an extension has to answer.
const pingTimeout = 5 * time.Second

// pingAll sends a ping to all targets, at most 32 at a time: more would measure their own load.
func pingAll(ctx context.Context, s *session, c *mesh.Catalog, targets []string) []pingJSON {
	client := mesh.NewClient(s.nc, mesh.ClientOptions{Prefix: string(s.prefix), Catalog: c, WaitReady: -1})
	out := make([]pingJSON, len(targets))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(32, len(targets)) {
		wg.Go(func() { // ends when next is closed
			for i := range next {
				start := time.Now()
				err := ping(ctx, s, client, c, targets[i])
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

func ping(ctx context.Context, s *session, client *mesh.Client, c *mesh.Catalog, id string) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	e, _ := c.Get(id)
	subject := s.prefix.RPC(id)
	if e.Spec != nil {
		subject = cmp.Or(e.Spec.Subject, subject)
	}
	ctx, cancel = s.denied.watch(ctx, subject+`"`) // not those of instances: the client then uses this one
	defer cancel()
	_, err := client.CallExt(ctx, id, "ping", nil)
	return cmp.Or(endedBy(ctx), err)
}

// printPings prints all results. The exit code is the code of the first failure, which is the error of a single extension.
func printPings(s *session, results []pingJSON, one bool) error {
	var failed error
	for _, r := range results {
		if r.err != nil {
			failed = r.err
			break
		}
	}
	if one && failed != nil {
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
