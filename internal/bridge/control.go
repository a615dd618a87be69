package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// control answers one message on P.control.<bridge>: restart, drain, reload, logs, ping, status.
type control struct {
	b       *Bridge
	retired []<-chan struct{} // closed, one by one, when what was drained is sent no more calls: then is the time to answer
}

// target is the params of the verbs about one extension.
type target struct {
	ID       string `json:"id"`
	Instance string `json:"instance"`
	Lines    int    `json:"lines"`
}

func (c *control) Handle(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	switch r.Method {
	case "ping":
		c.b.notePing(r.Params)
		return json.Marshal(c.b.identity())
	case "status":
		return c.status(r.Params)
	case "reload":
		return c.reload(ctx)
	}
	var t target
	if err := json.Unmarshal(r.Params, &t); err != nil || t.ID == "" {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `%s wants params {"id"}`, r.Method)
	}
	targets := c.b.fleet.find(t.ID, t.Instance)
	if len(targets) == 0 && !c.b.fleet.planApplied() {
		return nil, c.startingError()
	}
	if len(targets) == 0 {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "bridge %s runs no extension %q", c.b.cfg.Name, t.ID)
	}
	switch r.Method {
	case "restart":
		return applyToEach(targets, (*instance).restart), nil
	case "drain":
		return applyToEach(targets, func(s *instance) { c.retired = append(c.retired, s.drain()) }), nil
	case "logs":
		return logs(targets, t.Lines)
	}
	return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %q; there are restart, drain, reload, logs, ping and status", r.Method)
}

// starting is for who is too early.
func (c *control) startingError() error {
	return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: string(heartbeat.Spawning),
		RetryAfterMS: startingRetry.Milliseconds()}, "bridge %s starts, and has not read its manifests yet", c.b.cfg.Name)
}

// status answers for one extension, or instance, or for all of them.
func (c *control) status(params json.RawMessage) (json.RawMessage, error) {
	var t target
	if len(params) > 0 {
		if err := json.Unmarshal(params, &t); err != nil {
			return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, `status wants params {"id"}, or none`)
		}
	}
	s := c.b.status(t)
	out, err := json.Marshal(s)
	if err != nil || len(out) <= maxLogs {
		return out, err
	}
	// It is one message. What makes it long is there for whoever asks for one extension.
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

// instances does something to each slot and says to which.
func applyToEach(targets []*instance, do func(*instance)) json.RawMessage {
	var names []string
	for _, s := range targets {
		do(s)
		names = append(names, s.mesh.Instance())
	}
	out, err := json.Marshal(map[string]any{"instances": names})
	if err != nil { // strings always encode
		panic(err)
	}
	return out
}

// startingRetry is the hint to who is too early: manifests are read in milliseconds.
const startingRetry = 200 * time.Millisecond

// logLine is one line of logs' answer, and a record of P.log.<id>, where Dropped, how many lines were left out, may
// stand in place of Line.
type logLine struct {
	ID       string    `json:"id"`
	Instance string    `json:"instance"`
	TS       time.Time `json:"ts"`
	Line     string    `json:"-"`
	Dropped  int       `json:"dropped,omitempty"`
}

// MarshalJSON writes line unless there is dropped: an empty line is a line, too.
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

// maxLogs bounds logs' answer, in bytes: it is one message.
const maxLogs = 512 << 10

// logs is the last n lines of each slot, or as many as fit: each has its share of the room.
func logs(targets []*instance, n int) (json.RawMessage, error) {
	type written struct {
		at   time.Time
		json json.RawMessage
	}
	var all []written
	for _, s := range targets {
		lines, room := s.lines.last(n), maxLogs/len(targets)
		for _, l := range slices.Backward(lines) { // the newest are worth the most
			text, err := json.Marshal(logLine{ID: s.workload.id(), Instance: s.mesh.Instance(), TS: l.At, Line: l.Text})
			if err != nil {
				return nil, err
			}
			if room -= len(text) + 1; room < 0 { // what JSON makes of it: a < is six bytes
				break
			}
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
	started, replaced, stopped, err := c.b.reload(ctx)
	if err != nil {
		return nil, rpc.Errorf(rpc.CodeInternal, rpc.RanNo, "%v", err)
	}
	none := func(ids []string) []string { return append([]string{}, ids...) }
	return json.Marshal(map[string][]string{"started": none(started), "replaced": none(replaced), "stopped": none(stopped)})
}

// Status is the answer to status on P.control.<bridge>.
type Status struct {
	Bridge    string           `json:"bridge"`
	Host      string           `json:"host"`
	Version   string           `json:"version"`
	Since     time.Time        `json:"since"`
	Instances []InstanceStatus `json:"instances"`
}

// InstanceStatus is one slot of a bridge as its owner sees it.
type InstanceStatus struct {
	ID       string             `json:"id"`
	Instance string             `json:"instance"`
	State    heartbeat.State    `json:"state"`
	Reason   string             `json:"reason,omitempty"`
	PID      int                `json:"pid,omitempty"` // of the child that runs now
	Breaker  *heartbeat.Breaker `json:"breaker,omitempty"`
	LastExit *Exit              `json:"last_exit,omitempty"`
	Skipped  *Skipped           `json:"skipped,omitempty"`  // what children sent that is of no use
	Problems []mesh.Diagnostic  `json:"problems,omitempty"` // of the last handshake
}

// maxSlow bounds the reloads and drains that are not answered yet. Reloads come one after the other: each reads what was
// there when it was asked for, or later.
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

// retireLimit bounds how long drain waits for NATS: a second is what telling it may take.
const retireTimeout = 2 * time.Second

// awaitRetired waits until NATS sends no more calls to what was drained. Where it is away it sends none, either.
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

// serveControl answers on P.control.<bridge> until stop is called, unless somebody does already.
func (b *Bridge) serveControl(ctx context.Context) (stop func(), err error) {
	if err := b.checkNameIsFree(); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	slow := make(semaphore, maxPendingControl)
	// The verbs are done in the subscription's goroutine, one after the other; reload reads a tree of files.
	sub, err := b.nc.Subscribe(b.cfg.Prefix.Control(b.cfg.Name), func(m *nats.Msg) {
		c := &control{b: b}
		env, err := rpc.Scan(m.Data)
		if err == nil && env.MethodName() == "reload" {
			if !slow.tryAcquire() {
				b.respond(m, rpc.AppendError(nil, env.ID, rpc.NewError(rpc.CodeOverloaded, rpc.Details{Ran: rpc.RanNo, Limit: maxPendingControl},
					"%d reloads and drains are under way already", maxPendingControl)))
				return
			}
			wg.Go(func() { // owned by serveControl; ends when the files are read
				response := answer(ctx, c, m.Data)
				slow.release() // before the answer: who asks again with it in hand must not be refused
				b.respond(m, response)
			})
			return
		}
		response := answer(ctx, c, m.Data)
		if len(c.retired) == 0 || !slow.tryAcquire() { // who drains when too many wait already is told at once
			b.respond(m, response)
			return
		}
		wg.Go(func() { // owned by serveControl; ends within retireLimit
			c.awaitRetired(ctx)
			slow.release()
			b.respond(m, response)
		})
	})
	if err != nil {
		return nil, err
	}
	return func() { sub.Unsubscribe(); wg.Wait() }, nil
}

// respond answers on P.control.<bridge>, where the reply subject is an inbox. What the server does not take in one
// message is an error, or whoever asked would wait in vain.
func (b *Bridge) respond(m *nats.Msg, response []byte) {
	if !b.cfg.Prefix.MayAnswer(m.Reply) {
		return
	}
	err := m.Respond(response)
	if errors.Is(err, nats.ErrMaxPayload) {
		var id []byte
		if env, scanErr := rpc.Scan(response); scanErr == nil {
			id = env.ID
		}
		limit := b.nc.MaxPayload()
		err = m.Respond(rpc.AppendError(nil, id, rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: int64(len(response)), Limit: limit},
			"the answer is %d bytes, over this server's limit of %d; ask for less of it", len(response), limit)))
	}
	if err != nil {
		b.log.Warn("could not answer on the control subject", "error", err)
	}
}

// answer is one request's response message.
func answer(ctx context.Context, h rpc.Handler, data []byte) []byte {
	env, err := rpc.Scan(data)
	if err != nil {
		return rpc.AppendError(nil, nil, rpc.Errorf(rpc.CodeParse, rpc.RanNo, "%v", err))
	}
	if !rpc.ValidID(env.ID) || env.Method == nil {
		return rpc.AppendError(nil, nil, rpc.Errorf(rpc.CodeInvalidRequest, rpc.RanNo, `want "method" and "id"`))
	}
	result, err := rpc.Protect(ctx, h, &rpc.Request{ID: env.ID, Method: env.MethodName(), Params: env.Params})
	if err != nil {
		return rpc.AppendError(nil, env.ID, rpc.AsError(err))
	}
	return rpc.AppendResult(nil, env.ID, result)
}
