package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func undrainCmd(a *app) *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use:   "undrain [ID]",
		Short: "Let drained instances of an extension, or of a host, take calls again",
		Long: `Let the drained instances of an extension, or with --host of everything that a bridge runs, take calls again, and wait until
they are ready (default timeout: 90 s). They start with new processes. Instances that are not drained are left alone.`,
		Example: "  extctl undrain weather\n  extctl undrain --host web-1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := o.subject(cmd, args)
			if err != nil {
				return err
			}
			return a.withMesh(cmd, instanceTimeout, func(ctx context.Context, s *session) error {
				return undrain(ctx, s, o, id)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	o.addTo(cmd)
	return cmd
}

// undrain restarts the drained instances of an extension, or of a host if id is empty.
func undrain(ctx context.Context, s *session, o drainOptions, id string) error {
	bridges, o, err := drainedBridges(ctx, s, o, id)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	spots, failed, err := spotsOn(asking, s, bridges, id)
	if err != nil {
		return err
	}
	spots = slices.DeleteFunc(spots, func(p spot) bool {
		return p.state != heartbeat.Draining || p.reason != instance.ReasonDrain || o.instance != "" && p.instance != o.instance
	})
	if len(spots) == 0 && !s.json {
		s.note("%s has no drained instances", terminal.Clean(o.words(id)))
	}
	began := time.Now()
	for _, p := range spots {
		if a := requestBridge[operated](asking, s, p.bridge, "restart", map[string]string{"id": p.id, "instance": p.instance}); a.err != nil {
			return a.err
		}
	}
	results := []controlJSON{}
	for _, p := range spots {
		if err := awaitReady(ctx, s, p, instanceTimeout); err != nil {
			f := fail(exitCode(err), "%s on %s did not come back: %w", p.id, p.name(), err)
			f.hint = "extctl logs " + p.id + " --bridge " + p.bridge + " shows its output"
			return f
		}
		if !s.json {
			fmt.Fprintf(s.stdout, "%s: %s is ready after %s\n", terminal.Clean(p.name()), terminal.Clean(p.id), time.Since(began).Round(100*time.Millisecond))
		}
		result, err := json.Marshal(operated{[]string{p.instance}})
		if err != nil {
			return err
		}
		results = append(results, controlJSON{p.bridge, result})
	}
	if s.json {
		if err := printBridges(s, results, failed); err != nil {
			return err
		}
	} else {
		failed.print(s.app)
	}
	return failed.exit()
}

// drainedBridges are the bridges that undrain asks. The options have the whole name of the instance.
func drainedBridges(ctx context.Context, s *session, o drainOptions, id string) ([]string, drainOptions, error) {
	if id == "" {
		c, err := s.catalog(ctx, wire.KindHost)
		if err != nil {
			return nil, o, err
		}
		bridges, err := bridgesOfHost(c, o.host)
		return bridges, o, err
	}
	_, e, err := s.extension(ctx, id)
	if err != nil {
		return nil, o, err
	}
	if o.bridgeFlags, err = o.resolve(ctx, s, e); err != nil {
		return nil, o, err
	}
	bridges, err := o.bridgesOf(e)
	return bridges, o, err
}
