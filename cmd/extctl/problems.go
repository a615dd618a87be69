package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// problemJSON is something that is wrong, with a command that explains or fixes it.
type problemJSON struct {
	Level   string `json:"level"` // error or warn
	Kind    string `json:"kind"`  // registry, bridge, extension, manifest or refused
	Name    string `json:"name"`  // of the bridge or extension
	Message string `json:"message"`
	Command string `json:"command"`
}

// view is what status has read.
type view struct {
	server      string
	registry    *registry.Status // nil if it did not answer
	registryErr error            // why not
	age         time.Duration    // of the catalog
	hosts       []wire.Host
	extensions  []extensionJSON
}

// recentRefusal is how long a refused message counts as a problem; the alert on refusals has the same time.
const recentRefusal = 15 * time.Minute

// problems lists what is wrong, most severe first: what stops the whole mesh, lost bridges, extensions that cannot be called,
// and extensions that lack instances, each sorted by name; errors before warnings.
func (v view) problems() []problemJSON {
	out := append([]problemJSON{}, v.registryProblems()...)
	out = append(out, v.bridgeProblems()...)
	var down, degraded []problemJSON
	lost := v.lostBridges()
	for _, e := range v.extensions {
		if p, ok := extensionProblem(e, lost); ok && !e.Available {
			down = append(down, p)
		} else if ok {
			degraded = append(degraded, p)
		}
	}
	out = append(append(out, down...), degraded...)
	out = append(append(out, v.manifestProblems()...), v.refusals()...)
	slices.SortStableFunc(out, func(a, b problemJSON) int { return cmp.Compare(a.Level, b.Level) }) // error, warn
	return out
}

func (v view) registryProblems() []problemJSON {
	p := problemJSON{Level: levelError, Kind: "registry", Name: "registry", Command: "extctl show registry"}
	age := ""
	if v.age > staleAfter {
		age = "; the catalog " + ageText(v.age) + " and is not updated. Calls still work"
	}
	switch r := v.registry; {
	case r == nil && v.denied():
		if age == "" {
			return nil
		}
		p.Message, p.Command = "no registry leads"+age, ""
	case r == nil:
		p.Message = "no registry answers" + age
		p.Command = "registry --server " + terminal.ShellWord(v.server)
	case r.JetStream != "ok" && r.JetStream != "":
		p.Message = fmt.Sprintf("the registry %s cannot use JetStream: %s%s", r.Name, r.JetStream, age)
	case age != "":
		p.Message = "no registry leads" + age
	default:
		return nil
	}
	return []problemJSON{p}
}

func (v view) bridgeProblems() (out []problemJSON) {
	for _, h := range v.hosts {
		if h.State != heartbeat.Lost {
			continue
		}
		message := "the bridge " + h.Bridge
		if h.Host != "" && h.Host != h.Bridge {
			message += " on the host " + h.Host
		}
		if message += " is lost"; !h.StateSince.IsZero() {
			message += ", " + ago(h.StateSince)
		}
		if h.Reason != "" {
			message += ": it " + h.Reason
		}
		if n := len(h.Extensions) + h.ExtensionsLeftOut; n > 0 {
			message += fmt.Sprintf("; it ran %s", words.Plural(n, "extension"))
		}
		out = append(out, problemJSON{levelError, "bridge", h.Bridge, message, "extctl list --bridge " + terminal.ShellWord(h.Bridge)})
	}
	return out
}

// extensionProblem is what is wrong with an extension. Instances on lost bridges do not count as long as there are others:
// the bridge is a problem of its own.
func extensionProblem(e extensionJSON, lost map[string]bool) (p problemJSON, ok bool) {
	p = problemJSON{Level: levelOf(e), Kind: "extension", Name: e.ID, Command: "extctl show " + terminal.ShellWord(e.ID)}
	if p.Level == "" {
		return p, false
	}
	instances := e.Instances
	if e.Available {
		instances = slices.DeleteFunc(slices.Clone(instances), func(i wire.InstanceState) bool {
			return i.State == heartbeat.Lost && lost[i.Bridge]
		})
	}
	level, text := trouble(instances)
	switch {
	case !e.Available && len(instances) < 2:
		p.Message = fmt.Sprintf("%s is %s", e.ID, cmp.Or(strings.TrimPrefix(text, "1 "), fmt.Sprintf("%s: %s", e.State, cmp.Or(e.Reason, "it has no instance"))))
	case !e.Available:
		p.Message = fmt.Sprintf("%s cannot be called: %s", e.ID, text)
	case level == "":
		return p, false
	default:
		p.Level = level
		p.Message = fmt.Sprintf("%s can be called, but not all its instances: %s", e.ID, text)
	}
	switch worst := worstInstance(instances); worst.State {
	case heartbeat.Gated:
		p.Command = "extctl hosts --problems --bridge " + terminal.ShellWord(worst.Bridge)
	case heartbeat.Draining:
		p.Command = "extctl undrain " + terminal.ShellWord(e.ID)
	}
	return p, true
}

// worstInstance is the instance that trouble describes first.
func worstInstance(instances []wire.InstanceState) (worst wire.InstanceState) {
	for _, bad := range badStates {
		for _, i := range instances {
			if stateOfInstance(i) == bad.state {
				return i
			}
		}
	}
	return worst
}

// manifestProblems are the extensions that bridges could not start: one problem for each bridge. An extension that lacks
// requirements on one host and is available from another is a warning.
func (v view) manifestProblems() (out []problemJSON) {
	known := map[string]extensionJSON{}
	for _, e := range v.extensions {
		known[e.ID] = e
	}
	for _, h := range v.hosts {
		if h.State == heartbeat.Lost {
			continue
		}
		level, first, seen := levelWarn, "", map[string]bool{} // a manifest may have several problems
		for _, p := range h.Problems {
			e, listed := known[p.ID]
			if p.Kind == "gated" && listed && !e.Available {
				continue // it is a problem of its own
			}
			what := cmp.Or(p.ID, p.Path)
			seen[what], first = true, cmp.Or(first, what+": "+p.Message)
			if p.Kind != "gated" || !listed {
				level = levelError
			}
		}
		if n := len(seen) + h.ProblemsLeftOut; n > 0 {
			message := fmt.Sprintf("the bridge %s could not start %s", h.Bridge, words.Plural(n, "extension"))
			if first != "" {
				message += "; " + first
			}
			out = append(out, problemJSON{level, "manifest", h.Bridge, message, "extctl hosts --bridge " + terminal.ShellWord(h.Bridge)})
		}
	}
	return out
}

// refusals is one problem for all messages that the registry has refused recently.
func (v view) refusals() []problemJSON {
	if v.registry == nil {
		return nil
	}
	for _, r := range v.registry.Recent { // latest first
		if time.Since(r.Last) < recentRefusal {
			message := fmt.Sprintf("the registry refused a message %s: %s of %s: %s", ago(r.Last), r.What, r.ID, r.Reason)
			return []problemJSON{{levelWarn, "refused", r.ID, message, "extctl show registry"}}
		}
	}
	return nil
}

// The levels of a problem: something does not work, or something is on its way to or from working.
const (
	levelError = "error"
	levelWarn  = "warn"
)

// breakerOpen is the state, as shown here, of a ready instance that receives no calls because its breaker is open.
const breakerOpen heartbeat.State = "cut off by the breaker"

// badStates are the states that an instance should not be in, worst first, each with its level. Shutdown is not one: an
// instance is stopped on purpose.
var badStates = []struct {
	state heartbeat.State
	level string
}{
	{heartbeat.Failed, levelError}, {heartbeat.Lost, levelError}, {heartbeat.Gated, levelError}, {breakerOpen, levelError},
	{heartbeat.Restarting, levelWarn}, {heartbeat.Spawning, levelWarn}, {heartbeat.Draining, levelWarn},
}

// stateOfInstance is the instance's state, or that its breaker is open.
func stateOfInstance(i wire.InstanceState) heartbeat.State {
	if i.State == heartbeat.Ready && i.Breaker != nil && i.Breaker.State == heartbeat.BreakerOpen {
		return breakerOpen
	}
	return i.State
}

// trouble describes what is wrong with instances, worst first: "1 failed on web-1: exit status 3; 2 lost on web-2". The level
// is the worst one; "" if nothing is wrong.
func trouble(instances []wire.InstanceState) (level, text string) {
	var parts []string
	for _, bad := range badStates {
		var on []string
		n, why := 0, ""
		for _, i := range instances {
			if stateOfInstance(i) != bad.state {
				continue
			}
			n, why = n+1, cmp.Or(why, i.Reason)
			if i.Bridge != "" && !slices.Contains(on, i.Bridge) {
				on = append(on, i.Bridge)
			}
		}
		if n == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s", n, bad.state)
		if len(on) > 0 {
			part += " on " + words.Some(on, 3)
		}
		if why != "" {
			part += ": " + why
		}
		level, parts = cmp.Or(level, bad.level), append(parts, part)
	}
	return level, strings.Join(parts, "; ")
}

// levelOf is the level of an extension's problem; "" if it has none.
func levelOf(j extensionJSON) string {
	level, _ := trouble(j.Instances)
	if level == "" && !j.Available {
		for _, bad := range badStates {
			if bad.state == j.State {
				return bad.level
			}
		}
	}
	return level
}

// reason is why the extension is in its state, what is wrong with some of its instances, and the codes of diagnostics that
// need attention; show has their messages.
func reason(j extensionJSON) string {
	var parts []string
	if _, text := trouble(j.Instances); j.State == heartbeat.Ready && text != "" {
		parts = append(parts, text)
	} else if j.Reason != "" {
		parts = append(parts, j.Reason)
	}
	for _, d := range j.Diagnostics {
		if d.Level != "info" && !slices.Contains(parts, d.Code) {
			parts = append(parts, d.Code)
		}
	}
	return strings.Join(parts, ", ")
}

// hostTrouble reports whether a bridge is lost or has problems.
func hostTrouble(h wire.Host) bool {
	return h.State == heartbeat.Lost || len(h.Problems)+h.ProblemsLeftOut > 0
}
