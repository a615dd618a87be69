package bridge

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// control handles one message on P.control.<bridge>: restart, drain, reload, logs, calls, stats, tap, ping, inventory, status.
type control struct {
	b        *Bridge
	retired  []<-chan struct{}                // per drained instance; closed when NATS has stopped sending it calls; then the response is sent
	tapped   func(context.Context, *nats.Msg) // sends what follows the response; nil: nothing
	restarts []func(context.Context)          // of the instances that are drained first; each waits, then restarts one
}

// target is the params of the methods that concern one extension.
type target struct {
	ID       string `json:"id"`
	Instance string `json:"instance"`
	Lines    int    `json:"lines"`
	DrainMS  int64  `json:"drain_ms"`
}

func (c *control) Handle(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	switch r.Method {
	case "ping":
		c.b.name.notePing(r.Params)
		return c.current()
	case "inventory":
		c.b.inventory.requestFull()
		return c.current()
	case "status":
		return c.status(r.Params)
	case "reload":
		return c.reload(ctx)
	case "calls", "stats":
		return c.past(r)
	case "tap":
		return c.tap(r.Params)
	case "restart", "drain", "logs":
	default:
		return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %.100q; the methods are restart, drain, reload, logs, calls, stats, tap, ping, inventory and status", r.Method)
	}
	var t target
	whole := r.Method == "drain" // without an id: all extensions of the bridge
	var err error
	if len(r.Params) > 0 {
		err = json.Unmarshal(r.Params, &t)
	}
	if err != nil || t.ID == "" && (!whole || t.Instance != "") {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `%s requires params {"id"}`, r.Method)
	}
	targets := c.b.find(t)
	if len(targets) == 0 && !c.b.fleet.planApplied() {
		return nil, c.startingError()
	}
	if len(targets) == 0 && t.Instance != "" && len(c.b.find(target{ID: t.ID})) > 0 {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "bridge %s does not run the instance %q of %s", c.b.cfg.Name, t.Instance, t.ID)
	}
	if len(targets) == 0 && t.ID != "" {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "bridge %s runs no extension %q", c.b.cfg.Name, t.ID)
	}
	switch r.Method {
	case "restart":
		if gated := targets[0].workload.gated; !slices.ContainsFunc(targets, func(s *instance) bool { return s.workload.gated == "" }) {
			return nil, rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: string(heartbeat.Gated)},
				"%s is gated: %s; reload checks its requirements again, but for a variable the bridge must be restarted with it", targets[0].workload.id(), gated)
		}
		targets = slices.DeleteFunc(targets, func(s *instance) bool { return s.workload.gated != "" })
		return applyToEach(targets, func(s *instance) { c.restart(s, t.DrainMS) }), nil
	case "drain":
		return applyToEach(targets, func(s *instance) { c.retired = append(c.retired, s.drain().retired) }), nil
	}
	return logs(targets, t.Lines)
}

// maxDrainMS limits drain_ms: no call takes longer.
const maxDrainMS = int64(time.Hour / time.Millisecond)

// restart restarts an instance, at once, or when its calls in flight are complete but at most after drainMS.
func (c *control) restart(s *instance, drainMS int64) {
	if drainMS <= 0 {
		s.restart()
		return
	}
	if restart := s.drainFirst(time.Duration(min(drainMS, maxDrainMS)) * time.Millisecond); restart != nil {
		c.restarts = append(c.restarts, restart)
	}
}

// current returns the bridge's current run and the number of its last inventory message.
func (c *control) current() (json.RawMessage, error) {
	return json.Marshal(struct {
		identity
		Seq uint64 `json:"seq"`
	}{c.b.name.self, c.b.inventory.seq.Load()})
}

// startingError is returned for requests that arrive before there is a plan.
func (c *control) startingError() error {
	return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: string(heartbeat.Spawning),
		RetryAfterMS: startingRetry.Milliseconds()}, "bridge %s is starting and has not read its manifests yet; retry", c.b.cfg.Name)
}

// status returns the status of one extension, one instance, or all of them.
func (c *control) status(params json.RawMessage) (json.RawMessage, error) {
	var t target
	if len(params) > 0 {
		if err := json.Unmarshal(params, &t); err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `params of status must be {"id"} or absent`)
		}
	}
	s := c.b.status(t)
	out, err := json.Marshal(s)
	if err != nil || len(out) <= maxLogs {
		return out, err
	}
	// The response must fit in one message. The long parts can be requested for each extension.
	for n := range s.Instances {
		i := &s.Instances[n]
		i.Problems = nil
		if e := i.LastExit; e != nil {
			short := *e
			short.StderrTail = ""
			i.LastExit = &short
		}
	}
	return json.Marshal(s)
}

// applyToEach calls do for each instance and returns the response that lists them.
func applyToEach(targets []*instance, do func(*instance)) json.RawMessage {
	names := []string{}
	for _, s := range targets {
		do(s)
		names = append(names, s.mesh.Instance())
	}
	out, err := json.Marshal(map[string]any{"instances": names})
	if err != nil { // strings can always be encoded
		panic(err)
	}
	return out
}

// startingRetry is the retry hint of startingError: reading manifests takes milliseconds.
const startingRetry = 200 * time.Millisecond

// logLine is one line in the response to logs, and one message on P.log.<id>. A message with Dropped, the number of
// lines left out, has no Line.
type logLine struct {
	ID       string    `json:"id"`
	Bridge   string    `json:"bridge,omitempty"`
	Replica  int       `json:"replica,omitempty"` // among several replicas on Bridge, from 1
	Instance string    `json:"instance"`
	TS       time.Time `json:"ts"`
	Stream   string    `json:"stream,omitempty"` // stdout or log; absent: stderr
	Line     string    `json:"-"`
	Dropped  int       `json:"dropped,omitempty"`
}

// MarshalJSON writes line unless dropped is set. An empty line is written as well.
func (l logLine) MarshalJSON() ([]byte, error) {
	type plain logLine
	if l.Dropped > 0 {
		return json.Marshal(plain(l))
	}
	return json.Marshal(struct {
		plain
		Line string `json:"line"`
	}{plain(l), l.Line})
}

// maxLogs limits the response to logs, in bytes, because it is one message.
const maxLogs = 512 << 10

// logs returns the last n lines of each instance, or as many as fit: each instance has an equal share of the response, and what one
// does not need the others get.
func logs(targets []*instance, n int) (json.RawMessage, error) {
	type written struct {
		at   time.Time
		json json.RawMessage
	}
	var all []written
	type kept struct {
		*instance
		lines []Line
		size  int
	}
	var of []kept
	for _, s := range targets {
		k := kept{instance: s, lines: s.lines.last(n)}
		for _, l := range k.lines {
			k.size += len(l.Text) + 100
		}
		of = append(of, k)
	}
	slices.SortStableFunc(of, func(a, b kept) int { return a.size - b.size })
	left := maxLogs
	for i, k := range of {
		room := left / (len(of) - i)
		for _, l := range slices.Backward(k.lines) { // keep the newest
			text, err := json.Marshal(k.logLine(l))
			if err != nil {
				return nil, err
			}
			if room -= len(text) + 1; room < 0 { // the encoded size: a < takes six bytes
				break
			}
			left -= len(text) + 1
			all = append(all, written{l.At, text})
		}
	}
	slices.SortStableFunc(all, func(a, b written) int { return a.at.Compare(b.at) })
	lines := []json.RawMessage{}
	for _, w := range all {
		lines = append(lines, w.json)
	}
	return json.Marshal(map[string]any{"lines": lines})
}

func (c *control) reload(ctx context.Context) (json.RawMessage, error) {
	if c.b.fleetContext() == nil {
		return nil, c.startingError()
	}
	started, replaced, stopped, err := c.b.reload(ctx, false)
	if err != nil {
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "%v", err)
	}
	none := func(ids []string) []string { return append([]string{}, ids...) }
	p := c.b.plan()
	return json.Marshal(Reloaded{
		Started: none(started), Replaced: none(replaced), Stopped: none(stopped),
		Extensions: len(p.workloads) + len(p.declared), Problems: len(p.problems), SearchPaths: c.b.searchPaths(),
	})
}

// Reloaded is the response to reload on P.control.<bridge>.
type Reloaded struct {
	Started     []string `json:"started"`
	Replaced    []string `json:"replaced"`
	Stopped     []string `json:"stopped"`
	Extensions  int      `json:"extensions"`   // that the bridge runs or declares, with their members
	Problems    int      `json:"problems"`     // what it could not start, and what is missing
	SearchPaths []string `json:"search_paths"` // the absolute directories in which it looks for manifests; empty: extensions are switched off
}

// Status is the response to status on P.control.<bridge>.
type Status struct {
	Bridge    string           `json:"bridge"`
	Host      string           `json:"host"`
	Version   string           `json:"version"`
	Since     time.Time        `json:"since"`
	Instances []InstanceStatus `json:"instances"`

	SearchPaths []string `json:"search_paths"` // as in Reloaded
}

// InstanceStatus is one instance as its bridge sees it.
type InstanceStatus struct {
	ID       string             `json:"id"`
	Instance string             `json:"instance"`
	State    heartbeat.State    `json:"state"`
	Reason   string             `json:"reason,omitempty"`
	PID      int                `json:"pid,omitempty"` // of the child that is running
	Breaker  *heartbeat.Breaker `json:"breaker,omitempty"`
	LastExit *Exit              `json:"last_exit,omitempty"`
	Skipped  *Skipped           `json:"skipped,omitempty"`  // child output that was not used
	Problems []wire.Diagnostic  `json:"problems,omitempty"` // found in the last handshake
}

// maxPendingControl limits the reloads and drains that are waiting for their response. Reloads run one after the other;
// each reads the state of the files at or after the time of its request.
const maxPendingControl = 16

type semaphore chan struct{}

func (p semaphore) tryAcquire() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p semaphore) release() { <-p }

// retireTimeout limits how long drain waits for NATS; unsubscribing usually takes less than a second.
const retireTimeout = 2 * time.Second

// awaitRetired waits until NATS has stopped sending calls to the drained instances, or until retireTimeout has passed.
func (c *control) awaitRetired(ctx context.Context) {
	late := time.NewTimer(retireTimeout)
	defer late.Stop()
	for _, retired := range c.retired {
		select {
		case <-retired:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// serveControl handles P.control.<bridge> until stop is called. It fails if another bridge already uses the name.
func (b *Bridge) serveControl(ctx context.Context) (stop func(), err error) {
	if err := b.name.checkIsFree(); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	slow := make(semaphore, maxPendingControl)
	// Methods run in the subscription's goroutine, in order. A reload gets its own goroutine because it scans directories.
	sub, err := b.nc.Subscribe(b.cfg.Prefix.Control(b.cfg.Name), func(m *nats.Msg) {
		c := &control{b: b}
		env, err := jsonrpc.Scan(m.Data)
		if err == nil && env.MethodName() == "reload" {
			if !slow.tryAcquire() {
				b.respond(m, jsonrpc.AppendError(nil, env.ID, rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: maxPendingControl},
					"%d reloads and drains are already in progress; retry later", maxPendingControl)))
				return
			}
			wg.Go(func() { // owned by serveControl; ends when the reload has finished
				response, _ := jsonrpc.Answer(ctx, c, m.Data, b.nc.MaxPayload())
				slow.release() // before the response, so that a client can send the next request as soon as it has this one's response
				b.respond(m, response)
			})
			return
		}
		response, _ := jsonrpc.Answer(ctx, c, m.Data, b.nc.MaxPayload())
		for _, restart := range c.restarts {
			wg.Go(func() { restart(ctx) }) // owned by serveControl; at most one for each instance; ends with ctx at the latest
		}
		if len(c.retired) == 0 || !slow.tryAcquire() { // with too many waiting, respond without waiting
			b.respond(m, response)
			if c.tapped != nil {
				wg.Go(func() { c.tapped(ctx, m) }) // owned by serveControl; ends with ctx, or when the time of the tap is over
			}
			return
		}
		wg.Go(func() { // owned by serveControl; ends within retireTimeout
			c.awaitRetired(ctx)
			slow.release()
			b.respond(m, response)
		})
	})
	if err != nil {
		return nil, err
	}
	idle := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(idle) }) // the last message has been handled
	return func() {
		if sub.Unsubscribe() == nil { // otherwise the connection is closed
			<-idle
		}
		wg.Wait()
	}, nil
}

// respond sends a response on P.control.<bridge>. The reply subject must be an inbox.
func (b *Bridge) respond(m *nats.Msg, response []byte) {
	if !b.cfg.Prefix.MayAnswer(m.Reply) {
		return
	}
	if err := m.Respond(response); err != nil {
		b.log.Warn("cannot respond on the control subject", "error", err)
	}
}
