package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	maxResumes  = 5 // in a row that bring nothing
	resumeDelay = 500 * time.Millisecond
)

// events reads f's answer from in. Where the stream breaks off, and the server numbers its events, the rest is
// fetched from there: a server may also close it on purpose, to be polled.
func (c *Conn) events(ctx context.Context, in *eventReader, f *flight, s *session) error {
	delay, tries := resumeDelay, 0
	for {
		before := in.id
		err := c.untilAnswered(in, f, s)
		if err == nil {
			return nil
		}
		if long, ok := errors.AsType[*longEventError](err); ok {
			return c.tooLarge(long.size)
		}
		if err == io.EOF {
			err = errors.New("the server closed it")
		}
		err = fmt.Errorf("the stream of events: %w", err)
		if in.id != before {
			delay, tries = resumeDelay, 0
		}
		if tries++; tries > maxResumes || in.id == "" || s == nil || ctx.Err() != nil {
			return c.at.fault(err, rpc.RanMaybe)
		}
		if in.retry > 0 {
			delay = in.retry
		}
		if !sleep(ctx, delay) {
			return c.at.fault(err, rpc.RanMaybe)
		}
		delay *= 2
		body, again := c.stream(ctx, s, in.id)
		if again == errNoStream || again == errLost {
			return c.at.fault(fmt.Errorf("%w, and cannot be read on: %w", err, again), rpc.RanMaybe)
		}
		if again != nil {
			c.log.Debug("a stream of events cannot be read on yet", "error", again)
			body = http.NoBody
		}
		in.reset(body)
	}
}

// untilAnswered passes on what in brings, up to f's answer.
func (c *Conn) untilAnswered(in *eventReader, f *flight, s *session) error {
	for {
		data, err := in.next()
		if err != nil {
			return err
		}
		answered, err := c.message(data, f, s)
		if answered {
			return nil
		}
		if err != nil {
			c.log.Debug("an event is no message", "error", c.at.quote(err.Error(), 200))
		}
	}
}

// rest reads what is left behind the answer: nothing as a rule but the end, without which the connection could
// not be used again.
func (c *Conn) rest(in *eventReader, s *session) {
	for {
		data, err := in.next()
		if err != nil {
			return
		}
		c.message(data, nil, s)
	}
}

var (
	errNoStream = errors.New("the server offers no stream")
	errLost     = errors.New("the server does not know the session any more")
)

// stream asks for the stream of events behind the one named last, "" for what the server says unasked. Besides
// errNoStream and errLost its errors are worth another try.
func (c *Conn) stream(ctx context.Context, s *session, last string) (io.ReadCloser, error) {
	h := s.header(eventsOnly)
	if last != "" {
		h.Set("Last-Event-Id", last)
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := c.at.do(ctx, http.MethodGet, nil, h)
	if err != nil {
		cancel()
		return nil, c.at.fault(err, rpc.RanMaybe)
	}
	if resp.StatusCode == http.StatusOK && isEvents(resp.Header) {
		return &cancelBody{resp.Body, cancel}, nil
	}
	defer cancel()
	defer time.AfterFunc(patience, cancel).Stop()
	defer resp.Body.Close()
	r := c.refusal(resp)
	switch code := resp.StatusCode; {
	case s.lostBy(r):
		return nil, errLost
	case passing(code) || code == http.StatusConflict || code >= 500: // 409: the server has not noticed the old one's end
		return nil, fmt.Errorf("%s answered %s", c.at.name, statusLine(code))
	}
	return nil, errNoStream
}

// cancelBody is a body whose request ends with it.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}

// sleep reports false when ctx has ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
