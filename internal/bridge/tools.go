package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// A child that changes its lists often announces that several times. relist waits for the rest of a burst, but never
// longer than this, so that a child that never stops announcing changes does not prevent the reading.
const (
	relistDelay = 50 * time.Millisecond
	relistPause = 500 * time.Millisecond // between two readings
)

// relist reads the tools and the other lists again after the child announced that one of them has changed.
func (r *run) relist(ctx context.Context) {
	if !pause.For(ctx, relistDelay) {
		return
	}
	r.f.relist.clear()
	old := r.f.handshake.Load()
	if raw := r.f.reopened.Load(); raw != nil {
		old = &handshake{dialect: old.dialect, raw: *raw, listings: old.listings, took: old.took}
		if raw != r.resumed {
			r.resumed = raw
			r.inst.updates.resume(r.f.conn)
		}
	}
	if r.f.remote { // a server that handles one request at a time does not answer the health check meanwhile
		r.f.inflight.Add(1)
		defer r.f.inflight.Add(-1)
	}
	var hs *handshake
	var err error
	if r.f.remote && old.dialect == manifest.Ext {
		hs, err = r.readNativeServer(ctx)
	} else {
		hs, err = readTools(ctx, r.f.conn, old, r.inst.workload, len(r.f.handshake.Load().tools) == 0)
	}
	failed := err != nil && ctx.Err() == nil
	switch {
	case err == nil:
		r.applyHandshake(hs)
	case failed:
		r.inst.log.Warn("cannot read the changed lists; keeping the previous ones", "error", r.inst.reason(err))
		failed = !isOwnError(err) || !errors.Is(err, rpc.CodeMethodNotFound) // a native extension need not have tools/list
	}
	r.retryIncomplete(failed, retryAfter(err))
	pause.For(ctx, relistPause)
}

// readNativeServer reads the tools and hooks of a native HTTP server, which has neither a session nor a tools/list for certain,
// and may be another process by now.
func (r *run) readNativeServer(ctx context.Context) (*handshake, error) {
	reading, cancel := context.WithTimeout(ctx, max(relistTimeout, r.inst.workload.limits.start.Max))
	defer cancel()
	hs, err := exchangeHandshake(reading, r.f.conn, r.inst.workload, r.inst.agent, nil)
	if err == nil && hs.dialect != manifest.Ext {
		err = errors.New("the server speaks MCP now")
		r.end(err)
	}
	return hs, err
}

// The pauses between two readings of the lists of a server that has answered one of them with an error.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// retryIncomplete lets relist run again after a pause, which grows from one time to the next, if a list could not be read now
// or in the handshake. It waits at least as long as the server asked for.
func (r *run) retryIncomplete(failed bool, wait time.Duration) {
	if r.retry != nil {
		r.retry.Stop() // relist ran for another reason
	}
	if !failed && !r.f.handshake.Load().incomplete {
		r.retryPause = 0
		return
	}
	r.retryPause = min(max(2*r.retryPause, firstRetry, wait), lastRetry)
	r.retry = time.AfterFunc(r.retryPause, r.f.relist.send) // without effect after the end of the run
}

// readTools returns a copy of old with the child's current tools, which it reads with tools/list in either dialect, and an
// MCP server's other lists. Without any tools so far, a server may answer tools/list with an error again.
func readTools(ctx context.Context, c rpc.Caller, old *handshake, w *workload, none bool) (*handshake, error) {
	all := ctx
	ctx, cancel := context.WithTimeout(ctx, max(relistTimeout, w.limits.start.Max)) // what the first reading could take
	defer cancel()
	parsed, err := wire.ParseHandshake(old.raw)
	if err != nil {
		return nil, err
	}
	hs := &handshake{dialect: old.dialect, raw: old.raw, hooks: parsed.Hooks, took: old.took}
	if hs.dialect == manifest.MCP {
		if hs.tools, err = listTools(ctx, c, hs); none && isOwnError(err) {
			hs.withoutTools(err)
		} else if err != nil {
			return nil, err
		}
		if _, err = readListings(all, c, w, hs, parsed.Server, old.listings, hs.listTime(relistTimeout, w.limits.start.Max)); err != nil {
			return nil, err
		}
		return hs, hs.finish(parsed, w)
	}
	result, err := c.Call(ctx, "tools/list", nil)
	if err != nil {
		return nil, fmt.Errorf("tools/list: %w", err)
	}
	if len(result) > maxToolsList {
		return nil, fmt.Errorf("the result of tools/list has %d bytes; at most %d are possible", len(result), maxToolsList)
	}
	var r struct {
		Tools json.RawMessage `json:"tools"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, fmt.Errorf("the result of tools/list: %w", err)
	}
	if hs.tools, hs.problems, err = wire.ParseTools(r.Tools); err != nil {
		return nil, fmt.Errorf("the result of tools/list: %w", err)
	}
	return hs, hs.finish(parsed, w)
}
