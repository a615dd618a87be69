package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// report prints which extensions started, which did not and why, and how to call the first tool. Then it prints every
// change of state until ctx ends. The mesh runs without it, too: an error is logged.
func (m *localMesh) report(ctx context.Context, nc *nats.Conn) error {
	s := &session{app: m.app, nc: nc, prefix: m.bridge.Prefix}
	m.greet()
	err := s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		p := &progress{localMesh: m, catalog: c, printed: map[string]bool{}}
		if p.settle(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.summary(); err != nil || m.json {
			<-ctx.Done()
			return cmp.Or(err, ctx.Err())
		}
		w := watcher{session: s, catalog: c}
		return c.Watch(ctx, func(ev mesh.Event) {
			switch {
			case ev.Op == "synced":
				w.remember()
			case ev.Kind() == wire.KindState:
				_ = w.print(ev) // a closed stdout must not stop the mesh
			case ev.Kind() == wire.KindHost:
				p.readHost()
			}
		})
	})
	if err != nil && ctx.Err() == nil {
		m.logger.Warn("reading the state of the extensions failed", "error", err)
	}
	return nil
}

// greet prints where the mesh is.
func (m *localMesh) greet() {
	if m.json {
		return
	}
	if m.joins {
		fmt.Fprintf(m.stdout, "Joined the mesh on %s as the bridge %s\n", m.url, m.bridge.Name)
	} else {
		fmt.Fprintf(m.stdout, "NATS listens on %s, data directory: %s\n", m.url, m.data)
		fmt.Fprintf(m.stdout, "For the nats command and other programs: export NATS_URL=$(extctl url%s)\n", m.urlFlag)
	}
	if m.mcp != nil {
		fmt.Fprintf(m.stdout, "MCP clients connect to %s\n", m.mcp.url)
	}
}

// progress is what has been printed while the extensions start.
type progress struct {
	*localMesh
	catalog  *mesh.Catalog
	info     wire.Host       // the bridge's report
	reported bool            // the report has arrived
	printed  map[string]bool // ids of extensions
	problems map[string]bool // the lines of the last report
}

// settle prints the extensions as they start, until all have started or failed, or settleTimeout has passed since the
// bridge's report. It has no timeout before the report, because the registry may start slowly. It polls, because an
// extension without tools settles through time alone.
func (p *progress) settle(ctx context.Context) {
	late := time.NewTimer(settleTimeout)
	defer late.Stop()
	var callable <-chan time.Time // set as soon as a tool can be called
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for waits := true; !p.advance(); {
		if p.reported && waits {
			waits = false
			late.Reset(settleTimeout)
		}
		if callable == nil && !p.json && p.firstCall() != "" {
			callable = time.After(settleRest)
		}
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			if !waits {
				return
			}
			p.printf("the catalog does not exist yet; waiting for it")
		case <-callable:
			return
		case <-tick.C:
		}
	}
}

// toolsTimeout is how long after it became ready an extension may still have no tools in the catalog. The registry
// records the handshake with the tools, so this is only reached if the registry's handshake fails.
const toolsTimeout = 10 * time.Second

// advance prints the extensions that have settled since the last call, and reports whether all have.
func (p *progress) advance() bool {
	if p.readHost(); !p.reported {
		return false
	}
	all := true
	for _, id := range p.info.Extensions {
		if p.printed[id] {
			continue
		}
		state, reason, ok := p.settled(id)
		if !ok {
			all = false
			continue
		}
		p.printed[id] = true
		p.printState(id, state, reason)
	}
	return all
}

// readHost reads the bridge's report and prints its new problems.
func (p *progress) readHost() {
	for _, h := range p.catalog.Hosts() {
		if h.Bridge != p.bridge.Name || h.Since.Before(p.started) {
			continue
		}
		p.info, p.reported = h, true
		problems := map[string]bool{}
		for _, problem := range h.Problems {
			line := fmt.Sprintf("%-9s %s", problem.Kind, terminal.Clean(strings.TrimSpace(problem.ID+" "+problem.Path+": "+problem.Message)))
			if problem.Kind == "gated" { // gated extensions are printed as extensions
				continue
			}
			if problems[line] = true; !p.problems[line] {
				p.printf("%s", line)
			}
		}
		p.problems = problems
	}
}

// settled returns the state of an extension if it is ready, or will not be for now. It ignores instances of an earlier
// run that are still in the catalog.
func (p *progress) settled(id string) (state heartbeat.State, reason string, ok bool) {
	e, _ := p.catalog.Get(id)
	if e.Spec != nil && e.Spec.Transport == "nats" {
		return e.State.State, e.State.Reason, e.StateRevision > 0
	}
	if e.State == nil {
		return "", "", false
	}
	for _, i := range e.State.Instances {
		if i.Bridge != p.bridge.Name || !p.joins && i.Since.Before(p.started) { // a mesh elsewhere has its own clock
			continue
		}
		switch i.State {
		case heartbeat.Ready:
			return i.State, "", toolsKnown(e) || time.Since(i.Since) > toolsTimeout
		case heartbeat.Failed, heartbeat.Gated:
			return i.State, i.Reason, true
		case heartbeat.Restarting: // the bridge retries; a later start is printed as a change
			return i.State, i.Reason, i.Reason != ""
		default:
			state, reason = i.State, i.Reason
		}
	}
	return state, reason, false
}

func (p *progress) printState(id string, state heartbeat.State, reason string) {
	e, listed := p.catalog.Get(id) // the registry may have refused it
	version := ""
	if listed {
		version = " " + health.Of(e).Version
	}
	text := string(state)
	if p.colour() {
		text = paint(text) + strings.Repeat(" ", max(0, 9-len(state)))
	}
	line := fmt.Sprintf("%-9s %s", text, terminal.Clean(id+version))
	if state == heartbeat.Ready && listed {
		line += ", " + words.Plural(len(e.Spec.Tools), "tool")
	}
	if reason != "" {
		line += ": " + terminal.Clean(reason)
	}
	p.printf("%s", line)
}

func (p *progress) printf(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.stdout, format+"\n", args...)
	}
}

// summary prints what has not settled, and what to do next.
func (p *progress) summary() error {
	if p.json {
		return p.summaryJSON()
	}
	for _, id := range p.info.Extensions {
		if !p.printed[id] {
			state, reason, _ := p.settled(id)
			if state == heartbeat.Spawning {
				state = ""
			}
			p.printState(id, cmp.Or(state, "starting"), strings.TrimPrefix(reason, "starting: "))
		}
	}
	if len(p.info.Extensions) == 0 && len(p.info.Problems) == 0 {
		p.explainEmpty()
	}
	p.printf("")
	if call := p.firstCall(); call != "" {
		if p.urlFlag != "" { // the password is not where extctl looks for it
			call = "export NATS_URL=$(extctl url" + p.urlFlag + ")\n    " + call
		}
		p.printf("Call a tool from another terminal:\n\n    %s\n", call)
	}
	if p.joins {
		p.printf("Ctrl-C stops these extensions; the mesh keeps running.")
	} else {
		p.printf("Ctrl-C stops everything.")
	}
	return nil
}

// explainEmpty prints what to do if there is no extension.
func (p *progress) explainEmpty() {
	paths := p.bridge.Settings.SearchPaths
	if !p.bridge.Settings.Enabled || len(paths) == 0 {
		p.printf("This host runs no extensions: extensions.yaml disables them, or has no search_paths.")
		return
	}
	dirs := make([]string, len(paths)) // absolute: the commands are for another terminal
	for i, path := range paths {
		dirs[i] = path
		if dir, err := filepath.Abs(path); err == nil {
			dirs[i] = dir
		}
	}
	p.printf("There are no extensions in %s yet. Make one:\n", terminal.Clean(strings.Join(dirs, ", ")))
	p.printf("    extctl new hello --lang python --dir %s", terminal.ShellWord(dirs[0]))
	if w := p.bridge.Settings.Watch; w.Enabled && w.Reload {
		p.printf("\nIt starts as soon as it is there.")
	}
	if _, err := os.Stat(dirs[0]); err == nil {
		p.printf("If there is one already: extctl discover %s prints why it is not used.", terminal.ShellWord(dirs[0]))
	}
}

func (p *progress) summaryJSON() error {
	out := struct {
		header
		revisionJSON
		Server     string             `json:"server"`
		Data       string             `json:"data"`
		Bridge     string             `json:"bridge"`
		Extensions []health.Extension `json:"extensions"`
		Problems   []wire.HostProblem `json:"problems"`
	}{revisionJSON: revisionOf(p.catalog), Server: p.url, Data: p.data, Bridge: p.bridge.Name,
		Extensions: []health.Extension{}, Problems: append([]wire.HostProblem{}, p.info.Problems...)}
	for _, id := range p.info.Extensions {
		if e, ok := p.catalog.Get(id); ok {
			out.Extensions = append(out.Extensions, health.Of(e))
		}
	}
	return p.printJSON(out)
}

// firstCall is a command line that calls a tool which does no harm.
func (p *progress) firstCall() string {
	var tools []wire.Tool
	for _, id := range p.info.Extensions {
		if e, ok := p.catalog.Get(id); ok && p.printed[id] && e.State.Available {
			tools = append(tools, e.Spec.Tools...)
		}
	}
	tool, args, ok := toolargs.Suggest(tools)
	if !ok {
		return ""
	}
	return callLine(tool, args) + p.flags
}
