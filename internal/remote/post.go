package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	bothKinds  = "application/json, text/event-stream" // required by streamable HTTP
	jsonOnly   = "application/json"
	eventsOnly = "text/event-stream"

	// drainTimeout limits the wait for the rest of a body that is only read so that the connection can be reused, or
	// for an error's text.
	drainTimeout = 250 * time.Millisecond
	// refusalTimeout limits the wait for a refusal in JSON, which may be the extension's own error.
	refusalTimeout = 5 * time.Second
)

// post sends pc in the session s, which may be nil, and delivers the answer. It returns an error if there is none.
func (c *Conn) post(ctx context.Context, pc *pendingCall, s *session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// When the transport tries again or follows a redirect, the previous attempt did not run.
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { pc.sent.Store(false) },
		WroteHeaders: func() { pc.sent.Store(true) },
	})
	c.mu.Lock()
	accepts := c.negotiated.accepts()
	c.mu.Unlock()
	resp, err := c.at.do(traced, http.MethodPost, pc.body, s.header(accepts))
	if err != nil {
		return c.at.fault(err, pc.ran())
	}
	defer resp.Body.Close() // a body that was not read to its end costs the connection
	pc.header = resp.Header
	if resp.StatusCode/100 != 2 {
		limit := drainTimeout
		if strings.HasSuffix(mediaType(resp.Header), "json") {
			limit = refusalTimeout
		}
		defer time.AfterFunc(limit, cancel).Stop()
		return c.refused(pc, s, resp)
	}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe,
			"%s answered with Content-Encoding %q, although the request allows only identity", c.at.name, c.at.quote(coding, 40))
	}
	if isEvents(resp.Header) {
		in := newEventReader(resp.Body, c.at.max)
		defer in.close()
		if err := c.events(ctx, in, pc, s); err != nil {
			return err
		}
		defer time.AfterFunc(drainTimeout, cancel).Stop()
		_, _ = c.receive(in, nil, s) // usually only the end of the stream, which must be read before the connection can be reused
		return nil
	}
	return c.document(pc, s, resp)
}

// mediaType returns the Content-Type without its parameters, or "" if it is missing or invalid.
func mediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return kind
}

func isEvents(h http.Header) bool { return mediaType(h) == eventsOnly }

// document reads an answer that is the whole body. The Content-Type does not matter if the body is an answer.
func (c *Conn) document(pc *pendingCall, s *session, resp *http.Response) error {
	body, err := c.at.read(resp)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered %s to %s with an empty body",
			c.at.name, statusLine(resp.StatusCode), pc.method)
	}
	answered, err := c.message(body, pc, s)
	if answered {
		return nil
	}
	if kind := mediaType(resp.Header); err != nil && !strings.HasSuffix(kind, "json") {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered with %q instead of JSON%s", c.at.name, c.at.quote(kind, 60), c.at.text(kind, body))
	}
	if err == nil {
		err = errors.New("it is not an answer")
	}
	return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s sent an invalid answer to %s: %v", c.at.name, pc.method, err)
}

// read reads a whole body. It reads nothing if the Content-Length is over the limit, and stops at the limit.
func (e *endpoint) read(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > e.max {
		return nil, e.tooLarge(resp.ContentLength)
	}
	var b bytes.Buffer
	b.Grow(int(min(max(resp.ContentLength, 0), 1<<20)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(resp.Body, e.max+1)); err != nil {
		return nil, e.fault(err, rpc.RanMaybe)
	}
	if int64(b.Len()) > e.max {
		return nil, e.tooLarge(int64(b.Len()))
	}
	return b.Bytes(), nil
}

// tooLarge returns the error for an answer of at least size bytes.
func (e *endpoint) tooLarge(size int64) *rpc.Error {
	return rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: size, Limit: e.max},
		"the extension's answer is at least %d bytes, over the limit of %d", size, e.max)
}
