package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func watchCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "watch [ID…]",
		Short:   "Print every change of the catalog, or of some extensions and bridges, until interrupted",
		Example: "  extctl watch\n  extctl watch weather web-1",
		RunE: a.onMesh(0, func(ctx context.Context, s *session, only []string) error {
			s.noteNoCatalog(ctx)
			return s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
				w := watcher{session: s, catalog: c, only: only}
				var failed error
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				defer w.watchAge(ctx)()
				err := c.Watch(ctx, func(ev mesh.Event) {
					if failed = w.print(ev); failed != nil {
						cancel()
					}
				})
				if failed != nil {
					return failed
				}
				return streamEnd(err)
			})
		}),
		ValidArgsFunction: a.completeIDs,
	}
}

// watchAge prints a warning on stderr when no registry maintains the catalog, because then no change is shown, and a
// message when one does again. It runs until stop is called.
func (w *watcher) watchAge(ctx context.Context) (stop func()) {
	if w.json {
		return func() {}
	}
	var s staleness
	return every(ctx, time.Second, func() {
		if id, _ := w.catalog.Revision(); id == "" { // the catalog has not been loaded yet
			return
		}
		if text := s.note(w.catalog.Age(), w.nc.IsConnected()); text != "" {
			w.warn(text)
		}
	})
}

// every calls f once per interval until ctx ends or stop is called; f does not run after stop has returned.
func every(ctx context.Context, interval time.Duration, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx; stop ends it and waits
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f()
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// staleness stores whether the warning has been printed.
type staleness struct{ warned bool }

// note returns the message for a catalog of this age, or "" if nothing has changed.
func (s *staleness) note(age time.Duration, connected bool) string {
	old := age > health.StaleAfter
	if old == s.warned {
		return ""
	}
	s.warned = old
	switch {
	case old && !connected:
		return fmt.Sprintf("extctl: warning: the connection to NATS is down; the catalog %s and changes are not shown", health.Age(age))
	case old:
		return fmt.Sprintf("extctl: warning: no registry is leading; the catalog %s and changes are not shown", health.Age(age))
	}
	return "extctl: the catalog is maintained again"
}

// warn prints a line on stderr.
func (w *watcher) warn(text string) {
	w.stderrMu.Lock()
	defer w.stderrMu.Unlock()
	fmt.Fprintln(w.stderr, text)
}

// streamEnd is the error of an endless output: an interrupt needs no message.
func streamEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return silentError(exitInterrupted)
	}
	return err
}

// watcher keeps the last state of each extension and bridge, so that its lines can show what changed.
type watcher struct {
	*session
	catalog  *mesh.Catalog
	only     []string // extensions and bridges; empty for all
	states   map[string]heartbeat.State
	hosts    map[string]heartbeat.State
	stderrMu sync.Mutex
}

func (w *watcher) print(ev mesh.Event) error {
	if ev.Op == "synced" {
		w.remember()
		id, rev := w.catalog.Revision()
		w.warn(fmt.Sprintf("watching from revision %d of catalog %s", rev, id))
		for _, name := range w.only {
			if w.states[name] == "" && w.hosts[name] == "" {
				w.warn(fmt.Sprintf("extctl: there is no extension and no bridge %q yet", name))
			}
		}
		return nil
	}
	if len(w.only) > 0 && !slices.Contains(w.only, ev.Name()) {
		return nil
	}
	if w.json {
		return w.printJSON(ev)
	}
	text := w.describe(ev)
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintf(w.stdout, "%s  %-6d  %-20s  %s\n", time.Now().Format(time.TimeOnly), ev.Revision,
		terminal.Clean(ev.Name()), text)
	return err
}

// remember stores the current state of the catalog.
func (w *watcher) remember() {
	w.states, w.hosts = map[string]heartbeat.State{}, map[string]heartbeat.State{}
	for _, h := range w.catalog.Hosts() {
		w.hosts[h.Bridge] = h.State
	}
	for _, e := range w.catalog.All() {
		w.states[e.ID] = e.State.State
	}
}

// describe is one line about a change; "" if there is nothing to print.
func (w *watcher) describe(ev mesh.Event) string {
	switch ev.Kind() {
	case wire.KindState:
		return w.describeState(ev)
	case wire.KindSpec:
		return describeSpec(ev)
	case wire.KindSkill:
		return "skill " + verbOf(ev.Op)
	case wire.KindHost:
		return w.describeHost(ev)
	}
	return ev.Key + " " + verbOf(ev.Op)
}

// describeHost reports a bridge that was lost or returned, otherwise that its report changed.
func (w *watcher) describeHost(ev mesh.Event) string {
	bridge := ev.Name()
	was := w.hosts[bridge]
	var h wire.Host
	if ev.Op == "delete" || json.Unmarshal(ev.Value, &h) != nil {
		delete(w.hosts, bridge)
		return "bridge's report " + verbOf(ev.Op)
	}
	w.hosts[bridge] = h.State
	switch {
	case h.State == was || h.State == "":
		return "bridge's report changed"
	case h.State == heartbeat.Lost:
		return "bridge lost  it " + terminal.Short(h.Reason, 100)
	}
	return "bridge " + terminal.Clean(string(h.State))
}

func verbOf(op string) string {
	if op == "delete" {
		return "removed"
	}
	return "changed"
}

func (w *watcher) describeState(ev mesh.Event) string {
	id := ev.Name()
	was := w.states[id]
	if ev.Op == "delete" {
		delete(w.states, id)
		return "removed"
	}
	var doc wire.StateDoc
	if err := json.Unmarshal(ev.Value, &doc); err != nil {
		return "unreadable state"
	}
	w.states[id] = doc.State
	colour := func(s heartbeat.State) string {
		if w.colour() {
			return paint(string(s))
		}
		return terminal.Clean(string(s))
	}
	text := colour(doc.State)
	if was != "" && was != doc.State {
		text = colour(was) + " → " + text
	}
	ready, restarts := 0, 0
	for _, i := range doc.Instances {
		if i.State == heartbeat.Ready {
			ready++
		}
		restarts += int(i.Restarts)
	}
	text += fmt.Sprintf("  %d/%d", ready, len(doc.Instances))
	if restarts > 0 {
		text += ", " + words.Plural(restarts, "restart")
	}
	if doc.Reason != "" {
		text += "  " + terminal.Short(doc.Reason, 100)
	}
	return text
}

// describeSpec is the present version and the number of tools; the state is in lines of its own.
func describeSpec(ev mesh.Event) string {
	if ev.Op == "delete" {
		return ""
	}
	var s wire.Spec
	if err := json.Unmarshal(ev.Value, &s); err != nil {
		return "unreadable spec"
	}
	return "version " + terminal.Clean(s.Version) + ", " + words.Plural(len(s.Tools), "tool")
}
