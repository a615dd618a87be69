package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// exitJSON is the last unexpected exit of an instance's process, as its bridge reports it.
type exitJSON struct {
	Bridge     string    `json:"bridge"`
	Instance   string    `json:"instance"`
	Status     string    `json:"status"`
	UptimeSecs float64   `json:"uptime_secs"`
	Cause      string    `json:"cause,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	StderrTail string    `json:"stderr_tail,omitempty"`
	At         time.Time `json:"at"`
}

// exitsTimeout limits the requests to bridges; the rest of the output comes from the catalog.
const exitsTimeout = time.Second

// lastExits requests the last exits from the extension's bridges, in parallel. It leaves out a bridge that does not
// reply, or to which NATS denies the request.
func lastExits(ctx context.Context, s *session, e mesh.Extension) []exitJSON {
	ctx, cancel := context.WithTimeout(ctx, exitsTimeout)
	defer cancel()
	var bridges []string
	for _, i := range e.State.Instances {
		if i.Bridge != "" && i.State != heartbeat.Lost {
			bridges = append(bridges, i.Bridge)
		}
	}
	slices.Sort(bridges)
	bridges = slices.Compact(bridges)
	found := make([][]exitJSON, len(bridges))
	var wg sync.WaitGroup
	for n, b := range bridges {
		wg.Go(func() { found[n] = exitsOf(ctx, s, b, e.ID) }) // ends with ctx
	}
	wg.Wait()
	return append([]exitJSON{}, slices.Concat(found...)...)
}

func exitsOf(ctx context.Context, s *session, bridge, id string) (out []exitJSON) {
	result, err := s.request(ctx, s.prefix.Control(bridge), "bridge "+bridge, "status", map[string]string{"id": id})
	var status struct {
		Instances []struct {
			ID, Instance string
			LastExit     *exitJSON `json:"last_exit"`
		}
	}
	if err != nil || json.Unmarshal(result, &status) != nil {
		return nil
	}
	for _, i := range status.Instances {
		if i.ID == id && i.LastExit != nil {
			i.LastExit.Bridge, i.LastExit.Instance = bridge, i.Instance
			out = append(out, *i.LastExit)
		}
	}
	return out
}

// printExits prints the exits, each with the end of the process's stderr.
func printExits(a *app, exits []exitJSON) {
	const lines = 30 // a stack trace of Node.js is shorter
	for _, e := range exits {
		fmt.Fprintf(a.stdout, "\nLast exit of %s on %s: %s after %s, %s\n", terminal.Clean(e.Instance), terminal.Clean(e.Bridge), terminal.Clean(e.Status),
			time.Duration(e.UptimeSecs*float64(time.Second)).Round(time.Millisecond), words.Ago(e.At))
		if e.Cause != "" {
			fmt.Fprintf(a.stdout, "  stopped by the bridge: %s\n", terminal.Short(e.Cause, 200))
		}
		if e.Reason != "" {
			fmt.Fprintf(a.stdout, "  probable reason: %s\n", terminal.Short(e.Reason, 300))
		}
		tail := strings.Split(strings.TrimSpace(e.StderrTail), "\n")
		for _, line := range tail[max(0, len(tail)-lines):] {
			if line != "" {
				fmt.Fprintf(a.stdout, "  | %s\n", terminal.Clean(line))
			}
		}
	}
}
