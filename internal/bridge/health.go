package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// startHealthCheck checks the extension until stop is called, and ends the run if it fails.
func (r *run) startHealthCheck(ctx context.Context) (stop func()) {
	check := func(ctx context.Context, err error) {
		if err != nil && ctx.Err() == nil {
			r.end(err)
		}
	}
	watch := func(ctx context.Context) { check(ctx, r.watchHealth(ctx)) }
	end := func() {}
	if conn, ok := r.f.conn.(*jsonrpc.Conn); ok {
		end = r.f.check.start(ctx, func(ctx context.Context) { check(ctx, r.checkHang(ctx, conn)) })
		if r.f.handshake.Load().announcesChanges() {
			return end
		}
		watch = func(ctx context.Context) { r.relistSeldom(ctx, conn) }
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { watch(ctx) }) // owned by the caller, and stop waits for it; ends with ctx
	return func() {
		cancel()
		wg.Wait()
		end()
	}
}

// relistSeldom lets the lists of a child that does not announce their changes be read again from time to time. Reading them can be
// expensive: some servers request each page from a service on the Internet.
func (r *run) relistSeldom(ctx context.Context, conn *jsonrpc.Conn) {
	for pause.For(ctx, relistBusy*pingEvery) {
		for n := 0; n < relistBusy && conn.Mark().Waits(); n++ { // a child that handles one call at a time would not answer
			if !pause.For(ctx, pingEvery) {
				return
			}
		}
		r.f.relist.send()
	}
}

// announcesChanges reports whether an extension announces changes of all its lists. A native child does.
func (hs *handshake) announcesChanges() bool {
	if hs.dialect != manifest.MCP {
		return true
	}
	var r struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if json.Unmarshal(hs.raw, &r) != nil {
		return false
	}
	for _, capability := range []string{"tools", "prompts", "resources"} {
		var c struct {
			ListChanged bool `json:"listChanged"`
		}
		if text, offers := r.Capabilities[capability]; offers && (json.Unmarshal(text, &c) != nil || !c.ListChanged) {
			return false
		}
	}
	return true
}

var errHung = errors.New("it hangs")

// checkHang checks a child after a call missed its deadline. It returns an error if the child hangs, that is if nothing
// arrives from now on, not even the response to a ping. Any output counts, because a busy child may respond late. A child that
// handles one call at a time does not hang while a call that was sent before the check is within its time.
func (r *run) checkHang(ctx context.Context, conn *jsonrpc.Conn) error {
	timeout := r.inst.workload.limits.hang
	if timeout <= 0 {
		return nil
	}
	began := conn.Mark()
	for {
		_, err := ping(ctx, conn, timeout)
		switch {
		case !errors.Is(err, rpc.CodeTimeout), began.HasReceived(), ctx.Err() != nil:
			return nil
		case !began.Waits():
			return fmt.Errorf("%w: a call is overdue, and for %s there was neither output nor a response to a ping", errHung, timeout)
		}
	}
}

// Health checks of HTTP endpoints, which do not report that they end.
const (
	pingEvery   = 3 * time.Second
	pingTimeout = 3 * time.Second // at least
	pingLongest = 15 * time.Second
	maxMissed   = 2 // failed checks in a row until the run ends

	// pingShare limits what pings cost: a server that starts a process for each request works a tenth of the time for them.
	pingShare = 10

	// relistEvery is how many ticks, a minute, are between two readings of a server's lists: one behind a load balancer can be
	// replaced without a sign, and one without sessions cannot announce that its tools have changed.
	// A server that is busy is left alone for ten minutes at most.
	relistEvery = 20
	relistBusy  = 10 * relistEvery
)

// refusesMethod reports whether an HTTP server has answered that it does not have or permit a method.
func refusesMethod(err error) bool {
	switch status, _, _ := strings.Cut(rpc.AsError(err).Details().Status, " "); status {
	case "403", "404", "405":
		return true
	}
	return false
}

// retryAfter is the time for which a server asked for no requests; 0 if it did not.
func retryAfter(err error) time.Duration {
	if err == nil {
		return 0
	}
	return time.Duration(rpc.AsError(err).Details().RetryAfterMS) * time.Millisecond
}

// watchHealth sends a ping every few seconds, or less often if pings take long, and immediately after a call has failed. It
// returns an error if the server cannot be reached, or if a proxy in front of it reports that it is not there.
func (r *run) watchHealth(ctx context.Context) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	timeout := max(pingTimeout, min(2*r.f.handshake.Load().took, pingLongest))
	missed, known, implemented := 0, false, false
	var quiet time.Time // until then no ping is due
	for ticks, listed := 0, 0; ; {
		callFailed := false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if ticks++; time.Now().Before(quiet) {
				continue
			}
			if since := ticks - listed; since >= relistBusy || since >= relistEvery && r.f.inflight.Load() == 0 {
				listed = ticks
				r.f.relist.send()
			}
		case <-r.f.check.signal:
			callFailed = true
		}
		began := time.Now()
		alive, err := ping(ctx, r.f.conn, timeout)
		if quiet = began; alive {
			quiet = began.Add(pingShare * time.Since(began))
		}
		if wait := retryAfter(err); errors.Is(err, rpc.CodeOverloaded) && wait > 0 { // it asked for no requests
			quiet = time.Now().Add(min(wait, lastRetry))
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			missed, known, implemented = 0, true, true
			continue
		case alive && (!implemented || !isAboutSession(err)):
			missed, known = 0, true
			continue
		case alive: // it has lost the session: only a new run helps
		case !known && (errors.Is(err, rpc.CodeInternal) || refusesMethod(err)):
			missed = 0
			continue // it answered initialize, so it only does not implement ping
		case errors.Is(err, rpc.CodeTimeout) && r.f.inflight.Load() > 0:
			continue // it may be busy with that call, which ends at its deadline
		}
		if callFailed && rpc.AsError(err).Details().Status == "" { // the failed call counts as the first, but a proxy that answers may have others to send calls to
			missed++
		}
		if missed++; missed >= maxMissed {
			return fmt.Errorf("the health check failed: %w", err)
		}
	}
}

// isAboutSession reports whether an error of the extension itself means that it has lost the session.
func isAboutSession(err error) bool {
	e := rpc.AsError(err)
	text := strings.ToLower(e.Message)
	return e.Details().Kind == "" && (e.Code == rpc.CodeInvalidRequest || strings.Contains(text, "session") || strings.Contains(text, "not initialized"))
}

// ping checks whether the extension responds. Any response counts, including an error from the extension; err is the
// reason if there was none.
func ping(ctx context.Context, c rpc.Caller, timeout time.Duration) (alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err = c.Call(ctx, "ping", nil); err == nil {
		return true, nil
	}
	e := rpc.AsError(err)
	switch d := e.Details(); {
	case d.Kind == "":
		return true, err
	case e.Code == rpc.CodeTimeout, e.Code == rpc.CodeExited, e.Code == rpc.CodeUnavailable:
		return false, err
	default: // limits of ours do not count as a failure, but a server that responds to everything with 500 is broken
		return !strings.HasPrefix(d.Status, "5"), err
	}
}
