package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	maxResumes  = 5 // in a row without a new event, of streams that end soon
	resumeDelay = 500 * time.Millisecond
)

// events reads pc's answer from in. If the stream ends before the answer and its events have ids, it is resumed after
// the last event. A server may also end a stream on purpose, so that the client polls.
func (c *Conn) events(ctx context.Context, in *eventReader, pc *pendingCall, s *session) error {
	delay, tries := resumeDelay, 0
	for {
		before, began := in.id, time.Now()
		_, err := c.receive(in, pc, s)
		if err == nil {
			return nil
		}
		if long, ok := errors.AsType[*longEventError](err); ok {
			return c.at.tooLarge(long.size)
		}
		if err == io.EOF {
			err = errors.New("the server closed it")
		}
		err = fmt.Errorf("the stream of events: %w", err)
		if in.id != before || time.Since(began) > healthyAfter { // a proxy may close a stream that is idle for some time
			delay, tries = resumeDelay, 0
		}
		if tries++; tries > maxResumes || in.id == "" || s == nil || ctx.Err() != nil {
			return c.at.fault(err, rpc.RanMaybe)
		}
		if in.retry > 0 {
			delay = in.retry
		}
		if !pause.For(ctx, delay) {
			return c.at.fault(err, rpc.RanMaybe)
		}
		delay *= 2
		body, again := c.at.stream(ctx, s, in.id)
		if again == errNoStream || again == errLost {
			return c.at.fault(fmt.Errorf("%w, and cannot be resumed: %w", err, again), rpc.RanMaybe)
		}
		if again != nil {
			c.log.Debug("a stream of events cannot be resumed yet", "error", again)
			body = http.NoBody
		}
		in.reset(body)
	}
}

var (
	errNoStream = errors.New("the server offers no stream")
	errLost     = errors.New("the server has lost the session")
)

// stream requests the events after the one with the id last, or the server's own messages if last is "". Its errors
// other than errNoStream and errLost are worth a retry.
func (e *endpoint) stream(ctx context.Context, s *session, last string) (io.ReadCloser, error) {
	h := s.header(eventsOnly)
	if last != "" {
		h.Set("Last-Event-Id", last)
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := e.do(ctx, http.MethodGet, nil, h)
	if err != nil {
		cancel()
		return nil, e.fault(err, rpc.RanMaybe)
	}
	if resp.StatusCode == http.StatusOK && isEvents(resp.Header) {
		return &cancelBody{resp.Body, cancel}, nil
	}
	defer cancel()
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	defer resp.Body.Close()
	r := e.refusal(resp)
	switch code := resp.StatusCode; {
	case s.lostBy(r, 0):
		return nil, errLost
	case temporary(code) || code == http.StatusConflict || code >= 500: // 409: the server has not noticed that the previous stream ended
		return nil, fmt.Errorf("%s answered %s", e.name, statusLine(code))
	}
	return nil, errNoStream
}

// cancelBody cancels the request when the body is closed.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
