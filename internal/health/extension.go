package health

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Extension is the state of one extension as extctl shows it, also in JSON.
type Extension struct {
	ID        string               `json:"id"`
	Version   string               `json:"version"`
	Transport string               `json:"transport"`
	Dialect   string               `json:"dialect"`
	State     heartbeat.State      `json:"state"`
	Available bool                 `json:"available"`
	Reason    string               `json:"reason"`
	Parent    string               `json:"parent"`
	Tools     int                  `json:"tools"`
	Breaker   *heartbeat.Breaker   `json:"breaker"`
	Instances []wire.InstanceState `json:"instances"`

	Diagnostics []wire.Diagnostic `json:"diagnostics"`
}

// Of reads the documents of an extension.
func Of(e mesh.Extension) Extension {
	out := Extension{
		ID: e.ID, Version: e.Spec.Version, Transport: e.Spec.Transport, Dialect: e.Spec.Dialect, Parent: e.Spec.Parent,
		State: e.State.State, Available: e.State.Available, Reason: e.State.Reason, Breaker: e.State.Breaker,
		Tools: len(e.Spec.Tools), Instances: e.State.Instances,
	}
	if out.Version == "" && len(out.Instances) > 0 {
		out.Version = out.Instances[0].Version // before the first handshake
	}
	out.Diagnostics = append([]wire.Diagnostic{}, e.Spec.Diagnostics...)
	if out.Instances == nil {
		out.Instances = []wire.InstanceState{}
	}
	return out
}

// The levels of a problem: something does not work, or something is on its way to or from working.
const (
	Error = "error"
	Warn  = "warn"
)

// breakerOpen is the state, as shown here, of a ready instance that receives no calls because its breaker is open.
const breakerOpen heartbeat.State = "cut off by the breaker"

// badStates are the states that an instance should not be in, worst first, each with its level. Shutdown is not one: an
// instance is stopped on purpose.
var badStates = []struct {
	state heartbeat.State
	level string
}{
	{heartbeat.Failed, Error}, {heartbeat.Lost, Error}, {heartbeat.Gated, Error}, {breakerOpen, Error},
	{heartbeat.Restarting, Warn}, {heartbeat.Spawning, Warn}, {heartbeat.Draining, Warn},
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

// Level is the level of the extension's problem; "" if it has none.
func (e Extension) Level() string {
	level, _ := trouble(e.Instances)
	if level == "" && !e.Available {
		for _, bad := range badStates {
			if bad.state == e.State {
				return bad.level
			}
		}
	}
	if level == "" && e.fault() != "" {
		return Error
	}
	return level
}

// fault is a diagnostic about something that does not work, such as a list of tools that cannot be read; "" without one.
func (e Extension) fault() string {
	for _, d := range e.Diagnostics {
		if d.Level == Error {
			return d.Message
		}
	}
	return ""
}

// Summary is why the extension is in its state, what is wrong with some of its instances, and the codes of diagnostics that
// need attention; show has their messages.
func (e Extension) Summary() string {
	var parts []string
	if _, text := trouble(e.Instances); e.State == heartbeat.Ready && text != "" {
		parts = append(parts, text)
	} else if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	for _, d := range e.Diagnostics {
		if d.Level != "info" && !slices.Contains(parts, d.Code) {
			parts = append(parts, d.Code)
		}
	}
	return strings.Join(parts, ", ")
}

// StaleAfter is the age above which a catalog may be out of date. The leading registry renews its lease every 2 s.
const StaleAfter = 10 * time.Second

// Age states how old a catalog is.
func Age(age time.Duration) string {
	if age == math.MaxInt64 { // see mesh.Catalog.Age
		return "is empty"
	}
	return fmt.Sprintf("is %v old", age.Round(time.Second))
}
