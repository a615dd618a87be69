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
	bothKinds  = "application/json, text/event-stream" // what streamable HTTP has to accept
	jsonOnly   = "application/json"
	eventsOnly = "text/event-stream"

	// patience is how long the rest of a body is waited for that only matters a little.
	patience = 250 * time.Millisecond
)

// post sends f over the session s, which may be nil, and delivers the answer. The error says why there is none.
func (c *Conn) post(ctx context.Context, f *flight, s *session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Each attempt of the transport, and each redirect, begins anew: the one before was not run.
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { f.sent.Store(false) },
		WroteHeaders: func() { f.sent.Store(true) },
	})
	resp, err := c.at.do(traced, http.MethodPost, f.body, s.header(c.accepts()))
	if err != nil {
		return c.at.fault(err, f.ran())
	}
	defer resp.Body.Close() // read to its end wherever it has one, or the connection is lost
	f.header = resp.Header
	if resp.StatusCode/100 != 2 {
		defer time.AfterFunc(patience, cancel).Stop()
		return c.refused(f, s, resp)
	}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe,
			"%s answered with Content-Encoding %q, which was not asked for", c.at.name, c.at.quote(coding, 40))
	}
	if isEvents(resp.Header) {
		in := newEventReader(resp.Body, c.at.max)
		defer in.close()
		if err := c.events(ctx, in, f, s); err != nil {
			return err
		}
		defer time.AfterFunc(patience, cancel).Stop()
		c.rest(in, s)
		return nil
	}
	return c.document(f, s, resp)
}

// mediaType is a Content-Type without its parameters; "" for none or nonsense.
func mediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return kind
}

func isEvents(h http.Header) bool { return mediaType(h) == eventsOnly }

// document reads an answer that is the body. What type the server says it has does not matter if it is one.
func (c *Conn) document(f *flight, s *session, resp *http.Response) error {
	body, err := c.read(resp)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered %s to %s, without an answer in it",
			c.at.name, statusLine(resp.StatusCode), f.method)
	}
	answered, err := c.message(body, f, s)
	if answered {
		return nil
	}
	if kind := mediaType(resp.Header); err != nil && !strings.HasSuffix(kind, "json") {
		return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered with %q instead of JSON%s", c.at.name, c.at.quote(kind, 60), c.text(kind, body))
	}
	if err == nil {
		err = errors.New("there is no answer among the messages")
	}
	return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "%s answered %s with what is no answer: %v", c.at.name, f.method, err)
}

// read reads a whole body. One that says it is too long is not begun, an endless one is left at the limit.
func (c *Conn) read(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > c.at.max {
		return nil, c.tooLarge(resp.ContentLength)
	}
	var b bytes.Buffer
	b.Grow(int(min(max(resp.ContentLength, 0), 1<<20)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(resp.Body, c.at.max+1)); err != nil {
		return nil, c.at.fault(err, rpc.RanMaybe)
	}
	if int64(b.Len()) > c.at.max {
		return nil, c.tooLarge(int64(b.Len()))
	}
	return b.Bytes(), nil
}

// tooLarge is the error for an answer of at least size bytes.
func (c *Conn) tooLarge(size int64) *rpc.Error {
	return rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: size, Limit: c.at.max},
		"the extension's answer is at least %d bytes, over the limit of %d", size, c.at.max)
}
