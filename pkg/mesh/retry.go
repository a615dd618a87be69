package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// pauses are the waits before a call that met no responders, or surely did not run, is tried again: a
// subscription may be on its way through the cluster, a child between two lives.
var pauses = []time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 160 * time.Millisecond}

// maxPause is the longest that a call waits because it was told to come back later; one that would have to
// wait for longer, for a breaker, is better off knowing at once.
const maxPause = time.Second

// maxRepeats is how often a call that may have run is made again, if its tool bears that.
const maxRepeats = 2

// again reports whether a call that failed is to be tried again, and after how long (docs/protocol.md, "Trying
// again").
func (t *target) again(err error, try int) (wait time.Duration, ok bool) {
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return 0, false
	}
	wait = pauses[min(try, len(pauses)-1)]
	d := e.Details()
	if absent(err) {
		return wait, true
	}
	switch e.Code {
	case rpc.CodeOverloaded, rpc.CodeBreakerOpen:
		soon := d.RetryAfterMS >= 0 && d.RetryAfterMS <= maxPause.Milliseconds()
		wait = max(wait, time.Duration(d.RetryAfterMS)*time.Millisecond)
		return wait, soon && d.Ran == rpc.RanNo && try < len(pauses)
	case rpc.CodeExited, rpc.CodeTimeout, rpc.CodeInternal:
		// Without a kind it is the extension's own error, and its last word.
		return wait, d.Kind != "" && try < maxRepeats && t.repeatable()
	}
	return 0, false
}

// callError is the error of a call that a Client made; errors.As finds the *rpc.Error in it. It is marked because
// handlers pass errors on that they get: this one's kind and ran speak of their call, and not of the one that they
// answer, which its caller would make again on a ran "no", though it has run.
type callError struct{ err error }

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// ofCall marks a Client's error.
func ofCall(err error) error {
	if _, ok := errors.AsType[*rpc.Error](err); ok {
		return &callError{err}
	}
	return err
}

// ofHandler is a handler's error as its caller gets it. One that a Client returned to the handler becomes the
// extension's own, with all of its text. What the handler made itself stays, the mesh's kinds, too: a tool may refuse
// arguments with rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, …).
func ofHandler(ctx context.Context, err error) error {
	marked, ok := errors.AsType[*callError](err)
	if !ok || rpc.AsError(err) != rpc.AsError(marked) { // the handler's own stands before it
		return err
	}
	if end := ctx.Err(); end != nil { // of the handler's call, and so of those that it made
		return rpc.Errorf(rpc.AsError(end).Code, rpc.RanMaybe, "%s", err.Error())
	}
	return &rpc.Error{Code: rpc.CodeInternal, Message: err.Error()}
}

// repeatable reports whether the tool says of itself that running it twice does no harm.
func (t *target) repeatable() bool {
	if t.tool == nil {
		return false
	}
	for _, m := range t.tool.Extra {
		var hints struct {
			ReadOnly   bool `json:"readOnlyHint"`
			Idempotent bool `json:"idempotentHint"`
		}
		if m.Key == "annotations" && json.Unmarshal(m.Value, &hints) == nil {
			return hints.ReadOnly || hints.Idempotent
		}
	}
	return false
}

// refusedUnrun reports whether an instance did not know the tool, or not with these arguments, and surely ran nothing.
func refusedUnrun(t *target, err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return ok && (e.Code == rpc.CodeMethodNotFound ||
		e.Code == rpc.CodeInvalidParams && (e.Details().Ran == rpc.RanNo || t.repeatable()))
}

// mixedTries is how often a call is made at most that instances refuse in this way: once, or, while ready instances are
// of several versions, until with all likelihood one of the version that the catalog shows was met, whose tools the
// caller picked from (docs/decisions/0009-mixed-versions.md).
func (c *Client) mixedTries(id string) int {
	const least, most = 16, 64
	if c.opt.Catalog == nil {
		return 1
	}
	e, ok := c.opt.Catalog.Get(id)
	if !ok {
		return 1
	}
	ready, shown := 0, 0
	for _, i := range e.State.Instances {
		if i.State == heartbeat.Ready {
			ready++
			if i.Version == e.Spec.Version {
				shown++
			}
		}
	}
	if shown == 0 || shown == ready {
		return 1
	}
	return min(most, max(least, 4*ready))
}

// absent reports an error that says no more than that there was nobody to run the call.
func absent(err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return ok && (e.Code == rpc.CodeUnavailable || e.Code == rpc.CodeExited) && e.Details().Ran == rpc.RanNo
}

// justNow is how long ago an extension may have been lost for its return to be worth a wait.
const justNow = 5 * time.Second

// mayReturn reports whether an extension that nobody answers for was there a moment ago: between two lives of a
// child the catalog may still say ready, or already lost.
func (c *Client) mayReturn(id string) bool {
	if c.opt.Catalog == nil {
		return false
	}
	e, ok := c.opt.Catalog.Get(id)
	if !ok {
		return false
	}
	switch e.State.State {
	case heartbeat.Ready, heartbeat.Restarting, heartbeat.Spawning:
		return true
	}
	return e.State.State == heartbeat.Lost && time.Since(e.State.Since) < justNow
}

// explain adds what the catalog knows to an error that says only that nobody answers.
func (c *Client) explain(id string, err error) error {
	if c.opt.Catalog == nil || !absent(err) {
		return err
	}
	e, ok := c.opt.Catalog.Get(id)
	if !ok || e.State == nil || e.State.State == "" {
		return err
	}
	reason := e.State.Reason
	text := string(e.State.State)
	if reason != "" {
		text += ": " + reason
	}
	d := rpc.Details{Ran: rpc.RanNo, State: string(e.State.State), Reason: reason}
	if e.State.State == heartbeat.Ready {
		return rpc.NewError(rpc.CodeUnavailable, d, "nobody answers for %s, though the catalog still calls it ready", id)
	}
	return rpc.NewError(rpc.CodeUnavailable, d, "%s takes no calls (%s)", id, text)
}

// sleep waits for d, or returns false when ctx ends first, or will.
func sleep(ctx context.Context, d time.Duration) bool {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
