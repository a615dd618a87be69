package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// spot is an instance as its bridge reports it.
type spot struct {
	id, instance, bridge string
	number               int // among the instances of the extension on its bridge, from 1, as in the lines of logs
	state                heartbeat.State
	reason               string
}

// name is how people refer to the instance: bridge/N.
func (p spot) name() string { return p.bridge + "/" + strconv.Itoa(p.number) }

// spotsOf lists the instances in a bridge's status.
func spotsOf(s bridge.Status, bridge string) (out []spot) {
	numbers := map[string]int{}
	for _, i := range s.Instances {
		numbers[i.ID]++
		out = append(out, spot{i.ID, i.Instance, bridge, numbers[i.ID], i.State, i.Reason})
	}
	return out
}

// spotsOn asks bridges for their instances of an extension and its members; an empty id means all extensions.
func spotsOn(ctx context.Context, s *session, bridges []string, id string) ([]spot, failures, error) {
	var params any // an older bridge accepts absent params, but no empty id
	if id != "" {
		params = map[string]string{"id": id}
	}
	answers, failed, err := askBridges[bridge.Status](ctx, s, bridges, "status", params)
	var out []spot
	for _, a := range answers {
		out = append(out, spotsOf(a.parsed, a.Bridge)...)
	}
	return out, failed, err
}

// stateOf asks a bridge for the present state of one instance.
func stateOf(ctx context.Context, s *session, p spot) (spot, error) {
	a := requestBridge[bridge.Status](ctx, s, p.bridge, "status", map[string]string{"id": p.id, "instance": p.instance})
	if a.err != nil {
		return p, a.err
	}
	for _, i := range a.parsed.Instances {
		if i.Instance == p.instance {
			p.state, p.reason = i.State, i.Reason
			return p, nil
		}
	}
	return p, fail(exitNotFound, "bridge %s no longer runs it", p.bridge)
}

// resolve replaces the instance that the user named by its whole name. The names of the instances of one process begin with
// the same characters.
func (f bridgeFlags) resolve(ctx context.Context, s *session, e mesh.Extension) (bridgeFlags, error) {
	if f.instance == "" {
		return f, nil
	}
	var found []wire.InstanceState
	for _, i := range e.State.Instances {
		if i.Instance == f.instance {
			return f, nil
		}
		if (f.bridge == "" || f.bridge == i.Bridge) && (strings.HasPrefix(i.Instance, f.instance) || strings.HasSuffix(i.Instance, f.instance)) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		f.instance = found[0].Instance
	case len(found) > 1:
		return f, fail(exitAmbiguous, "%d instances of %s have a name that begins or ends with %s; give its bridge and number, such as %s/1",
			len(found), e.ID, f.instance, found[0].Bridge)
	case strings.Contains(f.instance, "/"):
		return f.resolveNumber(ctx, s, e)
	}
	return f, nil // bridgesOf reports that there is no such instance
}

// resolveNumber resolves bridge/N.
func (f bridgeFlags) resolveNumber(ctx context.Context, s *session, e mesh.Extension) (bridgeFlags, error) {
	name, number, _ := strings.Cut(f.instance, "/")
	if n, err := strconv.Atoi(number); err != nil || n < 1 {
		return f, usage("--instance %q: want BRIDGE/N with a number from 1, or a part of the instance's name", f.instance)
	}
	on := bridgeFlags{bridge: name}
	bridges, err := on.bridgesOf(e)
	if err != nil || f.bridge != "" && f.bridge != name {
		return f, errors.Join(err, fail(exitNotFound, "bridge %s runs no instance of %s", name, e.ID))
	}
	spots, _, err := spotsOn(ctx, s, bridges, e.ID)
	if err != nil {
		return f, err
	}
	have := 0
	for _, p := range spots {
		if p.id != e.ID {
			continue
		}
		if have = p.number; p.name() == f.instance {
			f.instance = p.instance
			return f, nil
		}
	}
	return f, fail(exitNotFound, "bridge %s runs %s of %s, so there is no %s", name, words.Plural(have, "instance"), e.ID, fmt.Sprintf("%q", f.instance))
}
