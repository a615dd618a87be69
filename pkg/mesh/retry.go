package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// pauses are the pauses before a call that no instance took is repeated.
var pauses = []time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 160 * time.Millisecond}

// maxPause is the longest retry_after_ms that a call waits for. With a longer one, of a breaker, it fails at once.
const maxPause = time.Second

// maxRepeats limits the repetition of calls that may have run, if the annotations of the tool allow it.
const maxRepeats = 2

// origin is the source of an attempt's error. It is not read from the error's data, which an extension may fill as it likes.
type origin int

const (
	byClient    origin = iota // this Client: no answer came, or an unreadable one
	byNATS                    // no responders
	byMesh                    // a bridge or a service, marked with the headers of micro's errors
	byExtension               // the extension itself
)

// attempt is how one request ended.
type attempt struct {
	result  json.RawMessage
	err     error
	origin  origin
	refused bool // it was not made: a breaker is open, or NATS has denied it
}

// mesh returns the error of an attempt that the extension itself did not answer; nil if it did, or if the error is not an
// *rpc.Error.
func (a *attempt) mesh() *rpc.Error {
	if a.origin == byExtension {
		return nil
	}
	e, _ := errors.AsType[*rpc.Error](a.err)
	return e
}

// absent reports that no instance took the call, for now. An extension that has failed, or refuses the credentials of its
// bridge, will not be back within the time of a call.
func (a *attempt) absent() bool {
	e := a.mesh()
	if e == nil || e.Code != rpc.CodeUnavailable && e.Code != rpc.CodeExited {
		return false
	}
	d := e.Details()
	return d.Ran == rpc.RanNo && d.State != string(heartbeat.Failed) && d.State != string(heartbeat.Gated)
}

// unlisted reports that the instance has no such tool: it refused the call without running anything.
func (a *attempt) unlisted() bool {
	e := a.mesh()
	return e != nil && a.origin == byMesh && e.Code == rpc.CodeMethodNotFound && e.Details().Ran == rpc.RanNo
}

// verdict is what the attempt means to the breaker: only a time-out counts against the other side.
func (a *attempt) verdict() breaker.Outcome {
	switch e := a.mesh(); {
	case a.err == nil || a.origin == byExtension:
		return breaker.Success
	case e != nil && e.Code == rpc.CodeTimeout && e.Details().Ran != rpc.RanNo:
		return breaker.Failure
	}
	return breaker.Neutral
}

// step is what follows an attempt that failed.
type step int

const (
	stop       step = iota // the error is final
	atOnce                 // another request, now
	afterPause             // another request, after retries.pause
	whenReady              // another request, when the catalog does not show the extension on its way back any more
)

// retries is the history of one call.
type retries struct {
	made     int           // attempts before the present one
	pause    time.Duration // for afterPause
	away     time.Time     // since this time no instance took it
	unlisted error         // the refusal after which an instance of the shown version was addressed
	mayHave  error         // of the first attempt that may have run

	anyInstance bool // the instance that was addressed did not take the call
}

// next decides what follows a failed attempt (docs/protocol.md, "Trying again").
func (r *retries) next(c *Client, t *target, a *attempt) step {
	r.pause = pauses[min(r.made, len(pauses)-1)]
	e := a.mesh()
	switch {
	case e == nil, a.refused:
		return stop
	case t.direct != "" && a.absent():
		t.guard.routes.absent(t.direct, time.Now())
		if c.mayNotAddress(t) {
			c.denied.Store(time.Now().Add(deniedFor).UnixNano())
		}
		r.anyInstance = true
		return atOnce
	case a.unlisted():
		return r.elsewhere(c, t, a)
	case a.absent():
		return r.whenAbsent(c, t)
	}
	d := e.Details()
	switch e.Code {
	case rpc.CodeOverloaded, rpc.CodeBreakerOpen:
		r.pause = max(r.pause, time.Duration(d.RetryAfterMS)*time.Millisecond)
		if d.Ran == rpc.RanNo && d.RetryAfterMS >= 0 && d.RetryAfterMS <= maxPause.Milliseconds() && r.made < len(pauses) {
			return afterPause
		}
	case rpc.CodeExited, rpc.CodeTimeout, rpc.CodeInternal, rpc.CodeUnavailable, rpc.CodeCancelled: // by another than the caller, for whom ask ends
		r.pause = max(r.pause, time.Duration(d.RetryAfterMS)*time.Millisecond)
		if d.Ran != rpc.RanNo && r.made < maxRepeats && r.pause <= maxPause && !c.opt.NoRepeat && t.tool != nil && t.tool.Repeatable() {
			if r.mayHave == nil {
				r.mayHave = a.err
			}
			return afterPause
		}
	}
	return stop
}

// elsewhere handles a refusal by an instance that does not have the tool: while the ready instances have several versions,
// it addresses an instance of the version that the catalog shows, once (docs/decisions/0009-mixed-versions.md).
func (r *retries) elsewhere(c *Client, t *target, a *attempt) step {
	if r.unlisted != nil {
		return stop
	}
	if t.instance = c.shown.instance(t); t.instance == "" {
		return stop
	}
	r.unlisted = a.err
	return atOnce
}

// whenAbsent handles an attempt that reached no instance: the subscription may not have spread through the cluster yet, or
// the child is being restarted.
func (r *retries) whenAbsent(c *Client, t *target) step {
	if t.instance != "" { // that instance has stopped meanwhile; the others have refused the call
		return stop
	}
	if r.away.IsZero() {
		r.away = time.Now() // until then the call may have been with an instance that then exited
	}
	if r.made == 0 && t.notFound == nil {
		c.suspect(t, "no_responders")
	}
	left := c.maxWait(t) - time.Since(r.away)
	switch {
	case t.hook && c.opt.Catalog.Age() <= freshness && c.shown.hasStopped(t.id): // a stopped extension would delay every tool call
		return stop
	case left > 0 && c.shown.returns(t.id):
		return whenReady
	case r.made < len(pauses), left > 0 && time.Since(r.away) < returnTime && c.shown.mayReturn(t.id):
		return afterPause
	}
	return stop
}

// returnTime is how long a call is retried while the catalog does not show yet that the extension restarts, and how long a
// hook waits for an extension.
const returnTime = time.Second

// maxWait is how long a call waits for an extension that is on its way back.
func (c *Client) maxWait(t *target) time.Duration {
	if t.hook {
		return min(c.opt.WaitReady, returnTime)
	}
	return c.opt.WaitReady
}

// final returns the error of the call; a is its last attempt.
func (r *retries) final(c *Client, t *target, a *attempt) error {
	if e := a.mesh(); r.mayHave != nil && a.origin != byExtension && (e == nil || e.Details().Ran == rpc.RanNo) { // only the last attempt has not run
		return r.mayHave
	}
	if r.unlisted != nil && (a.absent() || c.mayNotAddress(t)) {
		return r.unlisted
	}
	switch {
	case a.origin != byNATS:
		return a.err
	case t.notFound != nil:
		return t.notFound
	}
	return c.shown.explain(t.id, a.err)
}

// mayNotAddress reports whether NATS denied the request to the instance's subject. Of several denials the connection keeps the
// last one, which may be of another instance.
func (c *Client) mayNotAddress(t *target) bool {
	if t.to() == t.subject || c.traffic.Dialing() {
		return false
	}
	if c.traffic.DeniedSince(t.to(), time.Now().Add(-deniedFor)) {
		return true
	}
	err := c.nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+t.subject+`.`)
}

// sleep waits for d. It returns false when ctx ends first, or immediately if it would.
func sleep(ctx context.Context, d time.Duration) bool {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= d {
		return false
	}
	return pause.For(ctx, d)
}
