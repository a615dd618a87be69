package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// watch calls giveUp when the other side has to be given up, until stop.
func (s *instance) startHealthCheck(ctx context.Context, f *forwarder, giveUp func(error)) (stop func()) {
	check := func(ctx context.Context, err error) {
		if err != nil && ctx.Err() == nil {
			giveUp(err)
		}
	}
	if conn, ok := f.conn.(*rpc.Conn); ok {
		return f.hangCheck.start(ctx, func(ctx context.Context) { check(ctx, s.checkHang(ctx, conn)) })
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { check(ctx, s.watchHealth(ctx, f)) }) // owned by who called, whose stop waits; ends with ctx
	return func() {
		cancel()
		wg.Wait()
	}
}

var errHung = errors.New("it hangs")

// hangs looks at a child with a call past its deadline, and returns an error when it hangs: since then nothing came,
// not even the answer to a ping. Any byte is a sign of life: one that is only busy says so, or answers late.
func (s *instance) checkHang(ctx context.Context, conn *rpc.Conn) error {
	timeout := s.workload.limits.hang
	if timeout <= 0 {
		return nil
	}
	before := conn.Received()
	_, err := ping(ctx, conn, timeout)
	if errors.Is(err, rpc.CodeTimeout) && conn.Received() == before && ctx.Err() == nil {
		return fmt.Errorf("%w: a call is overdue, and for %s it neither answered a ping nor said anything", errHung, timeout)
	}
	return nil
}

// The health of what is reached over HTTP, where nobody tells of an end.
const (
	pingEvery   = 3 * time.Second
	pingTimeout = 3 * time.Second
	maxMissed   = 2 // in a row, and it counts as gone
)

// watchHealth pings every few seconds, and at once when a call has come to nothing. It returns an error when the
// other side is gone: it cannot be reached, or the server in front of it says that it is not there.
func (s *instance) watchHealth(ctx context.Context, f *forwarder) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	missed, known := 0, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.checkNow:
			missed++ // the call is the first witness
		}
		alive, err := ping(ctx, f.conn, pingTimeout)
		switch {
		case ctx.Err() != nil:
			return nil
		case alive:
			missed, known = 0, true
			continue
		case errors.Is(err, rpc.CodeInternal) && !known:
			missed = 0
			continue // it has answered initialize: it is only that it does not know ping
		case errors.Is(err, rpc.CodeTimeout) && f.inflight.Load() > 0:
			continue // it may be busy with that, and has until its deadline
		}
		if missed++; missed >= maxMissed {
			return fmt.Errorf("it is gone: %w", err)
		}
	}
}

// ping asks for a sign of life. Any answer is one, an error of the other side's own included; err says why there
// is none.
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
	default: // too much asked, too much answered; but a server whose every answer is 500 is broken
		return !strings.HasPrefix(d.Status, "5"), err
	}
}
