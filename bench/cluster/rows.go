package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// row is one fault.
type row struct {
	target string
	stop   bool          // SIGSTOP and SIGCONT instead of SIGKILL
	hold   time.Duration // how long it is stopped
	cheap  bool
	server bool   // the victim is a NATS server
	right  string // what it means that the catalog is right
	pick   func(context.Context, *stage) (victim, error)
}

func (r row) name() string {
	if r.stop {
		return r.target + "/stop"
	}
	return r.target + "/kill"
}

// victim is who suffers the fault.
type victim struct {
	label string
	pid   int
	own   *proc.Process // nil: a bridge's child
	again func() error  // starts it again; nil: somebody else does
	node  string        // a NATS server's name
	calls string        // the extension whose calls it takes part in; "" for none
	fence bool          // it leads: look at what it writes when it is thawed
	steal bool          // take its lease away while it is stopped
	right func(*mesh.Catalog) bool
}

const (
	rightChange  = "a change of an extension, made the moment after the fault, shows"
	rightBridge  = "no instance of the bridge shows as ready"
	rightLife    = "killed, the child's next life shows as ready (restarts + 1)"
	rightBreaker = "stopped, the instance does not show as ready, or its breaker not as closed"
	rightNative  = "the instance does not show as ready"
)

// allRows are the rows of the table. A server is stopped for longer than its clients take to find out (two
// unanswered pings, 20 to 30 s), a leader for longer than its lease lasts (10 s).
func allRows() []row {
	var all []row
	for _, stop := range []bool{false, true} {
		child := rightLife
		if stop {
			child = rightBreaker
		}
		all = append(all,
			row{target: "stream-leader", server: true, hold: 40 * time.Second, right: rightChange, pick: pickStreamLeader},
			row{target: "meta-leader", server: true, hold: 40 * time.Second, right: rightChange, pick: pickMetaLeader},
			row{target: "leader", hold: 20 * time.Second, right: rightChange, pick: pickLeader},
			row{target: "standby", hold: 20 * time.Second, right: rightChange, pick: pickStandby, cheap: !stop},
			row{target: "bridge", hold: 25 * time.Second, right: rightBridge, pick: pickBridge, cheap: !stop},
			row{target: "child", hold: 20 * time.Second, right: child, pick: pickChild(stop), cheap: !stop},
			row{target: "service", hold: 20 * time.Second, right: rightNative, pick: pickService, cheap: !stop},
		)
		for i := range all {
			if i >= len(all)-7 {
				all[i].stop = stop
			}
		}
	}
	return append(all, row{target: "fence", stop: true, hold: 3 * time.Second, right: rightChange, pick: pickFence})
}

func (s *stage) server(name string) (victim, error) {
	n, err := s.node(name)
	if err != nil {
		return victim{}, err
	}
	return victim{label: n.name, pid: n.PID(), own: n.Process, again: func() error { return s.startNode(n) }, node: n.name, right: s.canary.shown}, nil
}

func (s *stage) program(name string, right func(*mesh.Catalog) bool) victim {
	p := s.programs[name]
	return victim{label: name, pid: p.PID(), own: p, again: func() error { return s.launch(name) }, right: right}
}

func pickStreamLeader(ctx context.Context, s *stage) (victim, error) {
	stream, _, err := s.apart(ctx)
	if err != nil {
		return victim{}, err
	}
	return s.server(stream)
}

func pickMetaLeader(ctx context.Context, s *stage) (victim, error) {
	_, meta, err := s.apart(ctx)
	if err != nil {
		return victim{}, err
	}
	return s.server(meta)
}

func pickLeader(ctx context.Context, s *stage) (victim, error) {
	leader, _, err := s.registries(ctx)
	if err != nil {
		return victim{}, err
	}
	v := s.program(leader, s.canary.shown)
	v.fence = true
	return v, nil
}

func pickFence(ctx context.Context, s *stage) (victim, error) {
	v, err := pickLeader(ctx, s)
	v.steal = true
	return v, err
}

func pickStandby(ctx context.Context, s *stage) (victim, error) {
	_, standby, err := s.registries(ctx)
	if err != nil {
		return victim{}, err
	}
	return s.program(standby, s.canary.shown), nil
}

func pickBridge(_ context.Context, s *stage) (victim, error) {
	v := s.program("bridge-one", func(c *mesh.Catalog) bool {
		return !slices.ContainsFunc(instances(c, echoID), func(i mesh.InstanceState) bool {
			return i.Bridge == "one" && i.State == heartbeat.Ready
		})
	})
	v.calls = echoID
	return v, nil
}

func pickChild(stop bool) func(context.Context, *stage) (victim, error) {
	return func(ctx context.Context, s *stage) (victim, error) {
		pid, err := s.childOf(ctx, "one")
		if err != nil {
			return victim{}, err
		}
		was, ok := readyAt(s.crowd.followers[0].catalog, echoID, "one")
		if !ok {
			return victim{}, fmt.Errorf("the catalog shows no ready instance of bridge one")
		}
		v := victim{label: "the child of bridge-one", pid: pid, calls: echoID}
		v.right = func(c *mesh.Catalog) bool {
			now, ok := readyAt(c, echoID, "one")
			if stop {
				return !ok || now.Breaker != nil && now.Breaker.State != heartbeat.BreakerClosed
			}
			return ok && now.Restarts > was.Restarts
		}
		return v, nil
	}
}

func pickService(_ context.Context, s *stage) (victim, error) {
	was, ok := readyAt(s.crowd.followers[0].catalog, nativeID, "")
	if !ok {
		return victim{}, fmt.Errorf("the catalog shows no ready instance of the service")
	}
	v := s.program("native", func(c *mesh.Catalog) bool {
		return !slices.ContainsFunc(instances(c, nativeID), func(i mesh.InstanceState) bool {
			return i.Instance == was.Instance && i.State == heartbeat.Ready
		})
	})
	v.calls = nativeID
	return v, nil
}

// readyAt is the ready instance of an extension at a bridge.
func readyAt(c *mesh.Catalog, id, bridge string) (mesh.InstanceState, bool) {
	all := instances(c, id)
	i := slices.IndexFunc(all, func(i mesh.InstanceState) bool { return i.Bridge == bridge && i.State == heartbeat.Ready })
	if i < 0 {
		return mesh.InstanceState{}, false
	}
	return all[i], true
}

// words of a row for the table.
func (r row) words() string {
	how := "SIGKILL"
	if r.stop {
		how = fmt.Sprintf("SIGSTOP for %s", r.hold)
	}
	return strings.ReplaceAll(r.target, "-", " ") + ", " + how
}
