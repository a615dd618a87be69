package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
)

const (
	minBackoff   = time.Second // between two streams of what the server says unasked
	maxBackoff   = time.Minute
	healthyAfter = 30 * time.Second // such a stream clears the backoff
)

// listen follows what the server says unasked, as long as s is the session. Not offering that is a server's good
// right.
func (c *Conn) listen(ctx context.Context, s *session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	s.retire = cancel
	current := c.talk.session == s && c.talk.dialect == manifest.MCP
	c.mu.Unlock()
	if !current {
		return
	}
	in := newEventReader(http.NoBody, c.at.max)
	defer in.close()
	gap := false // between a stream that ended and the next
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		began, heard := time.Now(), false
		body, err := c.stream(ctx, s, in.id)
		switch {
		case err == nil:
			if gap && in.id == "" { // what the server said meanwhile it does not say again
				c.tell.notification(listChanged, nil)
			}
			gap = true
			in.reset(body)
			heard, err = c.hear(in, s)
		case err == errNoStream:
			return
		case err == errLost:
			_, err = c.reopen(ctx, s)
		}
		if heard || time.Since(began) > healthyAfter {
			backoff = minBackoff
		}
		pause := max(backoff, in.retry)
		pause += time.Duration(rand.Int64N(int64(pause / 2)))
		c.log.Debug("the stream of events ended", "error", err, "retry_in", pause.Round(time.Millisecond).String())
		if !sleep(ctx, pause) {
			return
		}
	}
}

// hear passes on what in brings, up to its end. An event that is too long is stepped over.
func (c *Conn) hear(in *eventReader, s *session) (heard bool, err error) {
	before := in.id
	for {
		data, err := in.next()
		if _, ok := errors.AsType[*longEventError](err); ok {
			in.skip()
		}
		if err != nil {
			return heard || in.id != before, err
		}
		heard = true
		if _, err := c.message(data, nil, s); err != nil {
			c.log.Debug("an event is no message", "error", c.at.quote(err.Error(), 200))
		}
	}
}
