package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// report says what came up, what did not and why, and how to call the first tool; then every change of state
// until ctx ends.
func (m *ownMesh) report(ctx context.Context) error {
	s := &session{app: m.app, nc: m.nc, prefix: m.prefix}
	if !m.json {
		fmt.Fprintf(m.stdout, "NATS listens on %s, its data is in %s\n", m.url, m.data)
	}
	return s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		p := &progress{ownMesh: m, catalog: c, told: map[string]bool{}}
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
			case ev.Op == mesh.OpSynced:
				w.remember()
			case ev.Kind() == mesh.KindState:
				_ = w.print(ev) // a stdout that is gone is no reason to stop
			case ev.Kind() == mesh.KindHost:
				p.readHost()
			}
		})
	})
}

// progress is what has been told of the extensions that come up.
type progress struct {
	*ownMesh
	catalog *mesh.Catalog
	found   mesh.Host
	known   bool // the bridge has said what it runs
	told    map[string]bool
	order   []string // the extensions that were told of
}

// settle tells of the extensions as they come up, until all have or it has waited long enough since the bridge said
// which there are: before that there is nothing to tell, and a registry that takes its time is no end of it. It looks
// now and then instead of at each change, because one that is ready without tools is settled by nothing but time.
func (p *progress) settle(ctx context.Context) {
	late := time.NewTimer(settleTimeout)
	defer late.Stop()
	var callable <-chan time.Time // since there is a tool to call
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for waits := true; !p.advance(); {
		if p.known && waits {
			waits = false
			late.Reset(settleTimeout)
		}
		if callable == nil && p.firstCall() != "" {
			callable = time.After(settleRest)
		}
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			if !waits {
				return
			}
			p.say("the catalog is not there yet; waiting for it")
		case <-callable:
			return
		case <-tick.C:
		}
	}
}

// toolsTimeout is how long after being ready an extension may still get its tools: a registry shows them when it has
// shaken hands. Of one that has none it shows the handshake, so this is for those with which it cannot.
const toolsTimeout = 10 * time.Second

// advance tells what has settled since the last look, and reports whether everything has.
func (p *progress) advance() bool {
	if p.readHost(); !p.known {
		return false
	}
	all := true
	for _, id := range p.found.Extensions {
		if p.told[id] {
			continue
		}
		state, reason, ok := p.settled(id)
		if !ok {
			all = false
			continue
		}
		p.told[id] = true
		p.order = append(p.order, id)
		p.sayExtension(id, state, reason)
	}
	return all
}

// readHost takes in what the bridge says it runs, and tells of the problems that it has not told of.
func (p *progress) readHost() {
	for _, h := range p.catalog.Hosts() {
		if h.Bridge != p.host.name || h.Since.Before(p.started) {
			continue
		}
		p.found, p.known = h, true
		for _, problem := range h.Problems {
			line := fmt.Sprintf("%-9s %s", problem.Kind, clean(strings.TrimSpace(problem.ID+" "+problem.Path+": "+problem.Message)))
			if problem.Kind == "gated" || p.told[line] { // the gated are extensions, and told as such
				continue
			}
			p.told[line] = true
			p.say("%s", line)
		}
	}
}

// settled reports how an extension is once it is up, or is not going to be for now. What the catalog remembers
// of an earlier run does not count.
func (p *progress) settled(id string) (state heartbeat.State, reason string, ok bool) {
	e, _ := p.catalog.Get(id)
	if e.Spec != nil && e.Spec.Transport == "nats" {
		return e.State.State, e.State.Reason, e.StateRevision > 0
	}
	if e.State == nil {
		return "", "", false
	}
	for _, i := range e.State.Instances {
		if i.Bridge != p.host.name || i.Since.Before(p.started) {
			continue
		}
		switch i.State {
		case heartbeat.Ready:
			return i.State, "", introduced(e) || time.Since(i.Since) > toolsTimeout
		case heartbeat.Failed, heartbeat.Gated:
			return i.State, i.Reason, true
		case heartbeat.Restarting: // it will be tried again, and told of when it comes up
			return i.State, i.Reason, i.Reason != ""
		}
	}
	return state, reason, false
}

func (p *progress) sayExtension(id string, state heartbeat.State, reason string) {
	e, _ := p.catalog.Get(id)
	text := string(state)
	if p.colour() {
		text = paint(text) + strings.Repeat(" ", max(0, 9-len(state)))
	}
	line := fmt.Sprintf("%-9s %s", text, clean(id+" "+toJSON(e).Version))
	if state == heartbeat.Ready {
		line += ", " + plural(len(e.Spec.Tools), "tool")
	}
	if reason != "" {
		line += ": " + clean(reason)
	}
	p.say("%s", line)
}

func (p *progress) say(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.stdout, format+"\n", args...)
	}
}

// summary tells what has not settled, and what to do next.
func (p *progress) summary() error {
	if p.json {
		return p.summaryJSON()
	}
	for _, id := range p.found.Extensions {
		if !p.told[id] {
			state, reason, _ := p.settled(id)
			p.sayExtension(id, cmp.Or(state, "starting"), reason)
		}
	}
	p.say("")
	if call := p.firstCall(); call != "" {
		p.say("Call a tool from another terminal:\n\n    %s\n", call)
	}
	p.say("Ctrl-C stops everything.")
	return nil
}

func (p *progress) summaryJSON() error {
	out := struct {
		header
		revisionJSON
		Server     string             `json:"server"`
		Data       string             `json:"data"`
		Bridge     string             `json:"bridge"`
		Extensions []extensionJSON    `json:"extensions"`
		Problems   []mesh.HostProblem `json:"problems"`
	}{revisionJSON: revisionOf(p.catalog), Server: p.url, Data: p.data, Bridge: p.host.name,
		Extensions: []extensionJSON{}, Problems: append([]mesh.HostProblem{}, p.found.Problems...)}
	for _, id := range p.found.Extensions {
		if e, ok := p.catalog.Get(id); ok {
			out.Extensions = append(out.Extensions, toJSON(e))
		}
	}
	return p.printJSON(out)
}

// firstCall is a command line that calls the tool that wants the fewest arguments but at least one, or else one
// that wants none: a call with an argument shows more.
func (p *progress) firstCall() string {
	best, bestArgs := "", []string(nil)
	for _, id := range p.order {
		e, ok := p.catalog.Get(id)
		if !ok || !e.State.Available {
			continue
		}
		for _, t := range e.Spec.Tools {
			args := exampleArguments(t.InputSchema)
			if best == "" || len(bestArgs) == 0 && len(args) > 0 || len(args) > 0 && len(args) < len(bestArgs) {
				best, bestArgs = t.Name, args
			}
		}
	}
	if best == "" {
		return ""
	}
	return callLine(best, bestArgs) + p.flags
}

// exampleArguments gives each required argument of a schema a value that fits its type.
func exampleArguments(schema json.RawMessage) []string {
	var top struct {
		Required []string `json:"required"`
	}
	if json.Unmarshal(schema, &top) != nil {
		return nil
	}
	values := map[string]string{"integer": "1", "number": "1.5", "boolean": "true", "array": "'[]'", "object": "'{}'"}
	known := properties(schema)
	var out []string
	for _, key := range top.Required {
		value := "hello"
		if key == "name" {
			value = "Ada"
		}
		if types := typesOf(known, key); len(types) > 0 && !slices.Contains(types, "string") {
			value = cmp.Or(values[types[0]], "null")
		}
		out = append(out, shellWord(key+"="+value))
	}
	return out
}

// shellWord quotes a word where a shell would take it apart; a quoted value stays as it is.
func shellWord(s string) string {
	if strings.HasSuffix(s, "'") || !strings.ContainsAny(clean(s), " \"'$`\\*?;&|<>(){}[]#~!") {
		return clean(s)
	}
	return "'" + strings.ReplaceAll(clean(s), "'", `'\''`) + "'"
}
