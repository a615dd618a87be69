package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// The levels of a problem: something does not work, or something is on its way to or from working.
const (
	levelError = "error"
	levelWarn  = "warn"
)

// breakerOpen stands for the state of a ready instance that gets no calls because its breaker is open.
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
// is that of the worst; "" if nothing is wrong.
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
			part += " on " + someOf(on, 3)
		}
		if why != "" {
			part += ": " + why
		}
		level, parts = cmp.Or(level, bad.level), append(parts, part)
	}
	return level, strings.Join(parts, "; ")
}

// someOf is the first words of a list, and how many more there are.
func someOf(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
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
