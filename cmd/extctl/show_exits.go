package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// exitJSON is how the last process of an instance that did not end as it should did, as its bridge knows it.
type exitJSON struct {
	Bridge     string    `json:"bridge"`
	Instance   string    `json:"instance"`
	Status     string    `json:"status"`
	UptimeSecs float64   `json:"uptime_secs"`
	Cause      string    `json:"cause,omitempty"`
	StderrTail string    `json:"stderr_tail,omitempty"`
	At         time.Time `json:"at"`
}

// exitsTimeout is how long show waits for a bridge: what the catalog says does not depend on it.
const exitsTimeout = time.Second

// lastExits asks the bridges of an extension how its processes ended, all at once. One that does not answer, or may not
// be asked, has nothing to say.
func (s *session) lastExits(ctx context.Context, e mesh.Extension) []exitJSON {
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
		wg.Go(func() { found[n] = s.exitsOf(ctx, b, e.ID) }) // ends with ctx
	}
	wg.Wait()
	return append([]exitJSON{}, slices.Concat(found...)...)
}

func (s *session) exitsOf(ctx context.Context, bridge, id string) (out []exitJSON) {
	result, err := s.ask(ctx, s.prefix.Control(bridge), "bridge "+bridge, "status", map[string]string{"id": id})
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

// printExits shows the exits, with the end of what each process had to say.
func (a *app) printExits(exits []exitJSON) {
	const lines = 10
	for _, e := range exits {
		fmt.Fprintf(a.stdout, "\nLast exit of %s on %s: %s after %s, %s\n", clean(e.Instance), clean(e.Bridge), clean(e.Status),
			time.Duration(e.UptimeSecs*float64(time.Second)).Round(time.Millisecond), ago(e.At))
		if e.Cause != "" {
			fmt.Fprintf(a.stdout, "  the bridge ended it: %s\n", short(e.Cause, 200))
		}
		tail := strings.Split(strings.TrimSpace(e.StderrTail), "\n")
		for _, line := range tail[max(0, len(tail)-lines):] {
			if line != "" {
				fmt.Fprintf(a.stdout, "  | %s\n", clean(line))
			}
		}
	}
}
