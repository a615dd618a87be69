package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/pkg/manifest"
)

const (
	minBackoff   = time.Second // between two streams of the server's messages
	maxBackoff   = time.Minute
	healthyAfter = 30 * time.Second // a stream of this duration resets the backoff
)

// listen reads the stream of the server's own messages as long as s is the session. A server need not offer one.
func (c *Conn) listen(ctx context.Context, s *session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	s.retire = cancel
	current := c.negotiated.session == s && c.negotiated.dialect == manifest.MCP
	c.mu.Unlock()
	if !current {
		return
	}
	in := newEventReader(http.NoBody, c.at.max)
	defer in.close()
	gap := false    // before this stream, in which the server's messages may have been lost
	opened := false // there was a stream
	// A stream that is resumed stays silent with some servers, so each request is for a new stream. Only a server that refuses that gets the id of the
	// last event, and the next time not.
	last := ""
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		began, received := time.Now(), false
		body, err := c.at.stream(ctx, s, last)
		switch {
		case err == nil:
			if gap {
				c.notifier.notification(listChanged, nil)
				if c.gap != nil {
					c.gap()
				}
			}
			opened, last = true, ""
			in.reset(body)
			received, err = c.receive(in, nil, s)
			in.close() // after an event that is too long it is open; the server would refuse another one
		case !opened && (err == errNoStream || err == errLost): // servers without a stream also answer 404 or 400
			return
		case err == errNoStream && last == "":
			last = in.id
		case err == errNoStream: // the server may not have the event any more
			last = ""
		case err == errLost:
			_, err = c.reopen(ctx, s)
		}
		gap = true
		if received || time.Since(began) > healthyAfter {
			backoff = minBackoff
		}
		delay := max(backoff, in.retry)
		delay += time.Duration(rand.Int64N(int64(delay / 2)))
		c.log.Debug("the stream of events ended", "error", err, "retry_in", delay.Round(time.Millisecond).String())
		if !pause.For(ctx, delay) {
			return
		}
	}
}

// receive handles the messages of in up to the answer to pc, then err is nil, or to the end of the stream. pc may be nil.
// An event that is too long is skipped.
func (c *Conn) receive(in *eventReader, pc *pendingCall, s *session) (received bool, err error) {
	before := in.id
	for {
		data, err := in.next()
		if _, ok := errors.AsType[*longEventError](err); ok {
			in.skip()
		}
		if err != nil {
			return received || in.id != before, err
		}
		received = true
		answered, err := c.message(data, pc, s)
		if answered {
			return true, nil
		}
		if err != nil {
			c.log.Debug("an event is not a message", "error", c.at.quote(err.Error(), 200))
		}
	}
}
