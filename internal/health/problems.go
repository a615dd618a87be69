// Package health finds what is wrong in a mesh, and what to do about it, from the documents of the catalog and the status of the
// registry.
package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Problem is something that is wrong, with a command that explains or fixes it.
type Problem struct {
	Level   string `json:"level"` // error or warn
	Kind    string `json:"kind"`  // registry, bridge, extension, manifest or refused
	Name    string `json:"name"`  // of the bridge or extension
	Message string `json:"message"`
	Command string `json:"command"`
}

// View is what is known of a mesh.
type View struct {
	Server     string           // the address of NATS
	Registry   *registry.Status // nil if it did not answer
	Denied     bool             // NATS does not allow this user requests to the registry
	Age        time.Duration    // of the catalog
	Hosts      []wire.Host
	Extensions []Extension
}

// rollingDrain is how long a rolling restart may drain an instance, which ends by itself.
const rollingDrain = 30 * time.Second

// recentRefusal is how long a refused message counts as a problem; the alert on refusals has the same time.
const recentRefusal = 15 * time.Minute

// Problems lists what is wrong, most severe first: what stops the whole mesh, lost bridges, extensions that cannot be called,
// and extensions that lack instances, each sorted by name; errors before warnings.
func (v View) Problems() []Problem {
	out := append([]Problem{}, v.registryProblems()...)
	out = append(out, v.bridgeProblems()...)
	var down, degraded []Problem
	lost := v.lostBridges()
	for _, e := range v.Extensions {
		if p, ok := extensionProblem(e, lost); ok && !e.Available {
			down = append(down, p)
		} else if ok {
			degraded = append(degraded, p)
		}
	}
	out = append(append(out, down...), degraded...)
	out = append(append(out, v.manifestProblems()...), v.refusals()...)
	slices.SortStableFunc(out, func(a, b Problem) int { return cmp.Compare(a.Level, b.Level) }) // error, warn
	return out
}

func (v View) registryProblems() []Problem {
	p := Problem{Level: Error, Kind: "registry", Name: "registry", Command: "extctl show registry"}
	age := ""
	if v.Age > StaleAfter {
		age = "; the catalog " + Age(v.Age) + " and is not updated. Calls still work"
	}
	switch r := v.Registry; {
	case r == nil && v.Denied:
		if age == "" {
			return nil
		}
		p.Message, p.Command = "no registry leads"+age, ""
	case r == nil:
		p.Message = "no registry answers" + age
		p.Command = "registry --server " + terminal.ShellWord(v.Server)
	case r.JetStream != "ok" && r.JetStream != "":
		p.Message = fmt.Sprintf("the registry %s cannot use JetStream: %s%s", r.Name, r.JetStream, age)
	case age != "":
		p.Message = "no registry leads" + age
	case len(leaders(r)) > 1:
		p.Message = strings.Join(leaders(r), " and ") + " lead at the same time: if this lasts, they use two JetStreams, for example that of a leaf node; connect all registries of a mesh to the same one"
	default:
		return nil
	}
	return []Problem{p}
}

func leaders(r *registry.Status) (names []string) {
	for _, other := range r.Replicas {
		if other.Leading {
			names = append(names, other.Name)
		}
	}
	return names
}

func (v View) bridgeProblems() (out []Problem) {
	for _, h := range v.Hosts {
		if h.State != heartbeat.Lost {
			continue
		}
		message := "the bridge " + h.Bridge
		if h.Host != "" && h.Host != h.Bridge {
			message += " on the host " + h.Host
		}
		level, what, why := Error, " is lost", ""
		if h.Reason == wire.ReasonStopped {
			level, what = Warn, " was stopped"
		} else if h.Reason != "" {
			why = ": it " + h.Reason
		}
		if message += what; !h.StateSince.IsZero() {
			message += ", " + words.Ago(h.StateSince)
		}
		message += why
		if n := len(h.Extensions) + h.ExtensionsLeftOut; n > 0 {
			message += fmt.Sprintf("; it ran %s", words.Plural(n, "extension"))
		}
		out = append(out, Problem{level, "bridge", h.Bridge, message, "extctl list --bridge " + terminal.ShellWord(h.Bridge)})
	}
	return out
}

// extensionProblem is what is wrong with an extension. Instances on lost bridges do not count as long as there are others:
// the bridge is a problem of its own.
func extensionProblem(e Extension, lost map[string]bool) (p Problem, ok bool) {
	p = Problem{Level: e.Level(), Kind: "extension", Name: e.ID, Command: "extctl show " + terminal.ShellWord(e.ID)}
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
	switch fault := e.fault(); {
	case !e.Available && len(instances) < 2:
		p.Message = fmt.Sprintf("%s is %s", e.ID, cmp.Or(strings.TrimPrefix(text, "1 "), fmt.Sprintf("%s: %s", e.State, cmp.Or(e.Reason, "it has no instance"))))
	case !e.Available:
		p.Message = fmt.Sprintf("%s cannot be called: %s", e.ID, text)
	case level == "" && fault != "":
		p.Message = fmt.Sprintf("%s is %s, but: %s", e.ID, e.State, fault)
	case level == "":
		return p, false
	default:
		p.Level = level
		p.Message = fmt.Sprintf("%s can be called, but not all its instances: %s", e.ID, text)
	}
	worst := worstInstance(instances)
	switch isDrained := worst.Bridge != "" && worst.Reason == instance.ReasonDrain && time.Since(worst.Since) > rollingDrain; {
	case worst.State == heartbeat.Gated:
		p.Command = "extctl hosts --problems --bridge " + terminal.ShellWord(worst.Bridge)
	case worst.State == heartbeat.Draining && isDrained:
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
func (v View) manifestProblems() (out []Problem) {
	known := map[string]Extension{}
	for _, e := range v.Extensions {
		known[e.ID] = e
	}
	for _, h := range v.Hosts {
		if h.State == heartbeat.Lost {
			continue
		}
		level, first, seen := Warn, "", map[string]bool{} // a manifest may have several problems
		for _, p := range h.Problems {
			e, listed := known[p.ID]
			if p.Kind == "gated" && listed && !e.Available {
				continue // it is a problem of its own
			}
			what := cmp.Or(p.ID, p.Path)
			seen[what], first = true, cmp.Or(first, what+": "+p.Message)
			if p.Kind != "gated" || !listed {
				level = Error
			}
		}
		if n := len(seen) + h.ProblemsLeftOut; n > 0 {
			message := fmt.Sprintf("the bridge %s could not start %s", h.Bridge, words.Plural(n, "extension"))
			if first != "" {
				message += "; " + first
			}
			out = append(out, Problem{level, "manifest", h.Bridge, message, "extctl hosts --bridge " + terminal.ShellWord(h.Bridge)})
		}
	}
	return out
}

// refusals is one problem for all messages that the registry has refused recently.
func (v View) refusals() []Problem {
	if v.Registry == nil {
		return nil
	}
	for _, r := range v.Registry.Recent { // latest first
		if time.Since(r.Last) < recentRefusal {
			message := fmt.Sprintf("the registry refused a message %s: %s of %s: %s", words.Ago(r.Last), r.What, r.ID, r.Reason)
			return []Problem{{Warn, "refused", r.ID, message, "extctl show registry"}}
		}
	}
	return nil
}

// lostBridges are the bridges that the registry has marked lost.
func (v View) lostBridges() map[string]bool {
	out := map[string]bool{}
	for _, h := range v.Hosts {
		if h.State == heartbeat.Lost {
			out[h.Bridge] = true
		}
	}
	return out
}
