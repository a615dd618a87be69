package remote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// refusal is a response other than 2xx.
type refusal struct {
	status int
	raw    []byte       // the body, as far as it was read
	env    rpc.Envelope // of the JSON-RPC error in it, if there is one
	text   string       // what it says to people, shortened, behind a colon
	retry  time.Duration
}

// maxRefusal bounds what is read of the body of a refusal.
const maxRefusal = 1 << 20

// statusLine is a status in our words: those of the server may be anything.
func statusLine(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// passing reports whether a status is about the moment and not about the request.
func passing(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

// refusal reads resp.
func (c *Conn) refusal(resp *http.Response) *refusal {
	r := &refusal{status: resp.StatusCode, retry: retryAfter(resp.Header, time.Now())}
	// What cannot be read, or not in time, is left: the status says the most of it.
	limit := min(maxRefusal, c.at.max)
	r.raw, _ = io.ReadAll(io.LimitReader(resp.Body, limit))
	whole := int64(len(r.raw)) < limit
	r.raw = bytes.TrimSpace(bytes.ToValidUTF8(r.raw, []byte("\ufffd")))
	env, err := rpc.Scan(r.raw)
	if err == nil && env.IsResponse() && env.Error != nil && string(env.Error) != "null" {
		r.env = env
	}
	r.text = c.beginning(mediaType(resp.Header), r.raw, whole)
	return r
}

// maxLook is how much of a body is looked at for what is shown of it.
const maxLook = 4 << 10

// text is ": " and the beginning of a body, if it is one for people to read.
func (c *Conn) text(kind string, body []byte) string { return c.beginning(kind, body, true) }

// beginning is text of what may be only the first part of a body.
func (c *Conn) beginning(kind string, body []byte, whole bool) string {
	if kind != "" && kind != "text/plain" && !strings.HasSuffix(kind, "json") {
		return "" // of a page of HTML the first 200 bytes say nothing
	}
	if env, err := rpc.Scan(body); err == nil && env.Error != nil {
		var e struct{ Message string }
		if json.Unmarshal(env.Error, &e) == nil {
			body = []byte(e.Message)
		}
	}
	text := string(body[:min(len(body), maxLook)])
	if !whole || len(body) > maxLook {
		text = gate.RedactCut(c.at.hide.Redact, strings.ToValidUTF8(text, "\uFFFD")) + "…"
	}
	if s := c.at.quote(text, 200); s != "" {
		return ": " + s
	}
	return ""
}

// refused ends f with what a status other than 2xx means. A JSON-RPC error in the body is the extension's own,
// except where it names no request and the status says that nothing looked into it.
func (c *Conn) refused(f *flight, s *session, resp *http.Response) error {
	r := c.refusal(resp)
	if s.lostBy(r) {
		return &lostError{c.refusedError(f, r)}
	}
	id := string(r.env.ID)
	if r.env.Error != nil && (id != "" && id != "null" || !closedDoor(r.status)) {
		if answered, _ := c.message(r.raw, f, s); answered {
			return nil
		}
	}
	return &statusError{r.status, c.refusedError(f, r)}
}

// closedDoor reports whether a status is about who asks, or how often, and not about what.
func closedDoor(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusTooManyRequests:
		return true
	}
	return false
}

// refusedError is the error for a status.
func (c *Conn) refusedError(f *flight, r *refusal) *rpc.Error {
	line := statusLine(r.status)
	code, ran := meaning(r.status)
	d := rpc.Details{Ran: ran, Status: line, Reason: line, RetryAfterMS: r.retry.Milliseconds()}
	if code == rpc.CodeUnavailable && ran == rpc.RanNo { // the same request would be refused again
		d.State = string(heartbeat.Failed)
	}
	if code == rpc.CodeTooLarge {
		d.Size = int64(len(f.body))
	}
	return rpc.NewError(code, d, "%s answered %s%s%s", c.at.name, line, r.text, hint(f.method, r.status))
}

// meaning is the mesh's error for a status, and whether the tool may have run. A gateway's 502, 503 and 504 may
// come after the server behind it had the request.
func meaning(status int) (rpc.Code, rpc.Ran) {
	switch status {
	case http.StatusTooManyRequests:
		return rpc.CodeOverloaded, rpc.RanNo
	case http.StatusRequestEntityTooLarge:
		return rpc.CodeTooLarge, rpc.RanNo
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusNotAcceptable, http.StatusProxyAuthRequired, http.StatusGone, http.StatusLengthRequired,
		http.StatusRequestURITooLong, http.StatusUnsupportedMediaType, http.StatusMisdirectedRequest,
		http.StatusUpgradeRequired, http.StatusRequestHeaderFieldsTooLarge:
		return rpc.CodeUnavailable, rpc.RanNo
	case http.StatusInternalServerError, http.StatusNotImplemented:
		return rpc.CodeInternal, rpc.RanMaybe
	}
	if status >= 500 {
		return rpc.CodeUnavailable, rpc.RanMaybe
	}
	return rpc.CodeInternal, rpc.RanMaybe
}

// hint says what to do about a status that has one usual cause.
func hint(method string, status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "; are the headers of [transport] right?"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if method == "initialize" {
			return "; is the url right? Of an MCP server it has to be that of its streamable HTTP, not of HTTP+SSE"
		}
	}
	return ""
}

// retryAfter reads the header, in either of its forms; nonsense and the past count as 0.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	d := time.Duration(0)
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), time.Hour)
}

// statusError is an HTTP status that is no answer.
type statusError struct {
	status int
	err    *rpc.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// lostError says that the server does not know the session; err is for who cannot be helped by another one.
type lostError struct{ err *rpc.Error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }
