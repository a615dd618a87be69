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
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// refusal is a response other than 2xx.
type refusal struct {
	status int
	raw    []byte           // the body, as far as it was read
	env    jsonrpc.Envelope // of the JSON-RPC error in it, if there is one
	text   string           // its readable text, shortened, with ": " in front
	retry  time.Duration
}

// maxRefusal limits how much of the body of a refusal is read.
const maxRefusal = 1 << 20

// statusLine returns a status with the standard text, since the server's text may be anything.
func statusLine(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// temporary reports whether the same request may succeed later.
func temporary(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

// refusal reads resp.
func (e *endpoint) refusal(resp *http.Response) *refusal {
	r := &refusal{status: resp.StatusCode, retry: retryAfter(resp.Header, time.Now())}
	// An error while reading is ignored: the status is the important part.
	limit := min(maxRefusal, e.max)
	r.raw, _ = io.ReadAll(io.LimitReader(resp.Body, limit))
	whole := int64(len(r.raw)) < limit
	r.raw = bytes.TrimSpace(bytes.ToValidUTF8(r.raw, []byte("\ufffd")))
	env, err := jsonrpc.Scan(r.raw)
	if err == nil && env.IsResponse() && env.Error != nil && string(env.Error) != "null" && (env.ID != nil || isJSONRPC(r.raw)) {
		r.env = env
	}
	r.text = e.beginning(mediaType(resp.Header), r.raw, whole)
	return r
}

// isJSONRPC distinguishes a JSON-RPC error without an id from what frameworks and gateways answer, such as
// {"status":503,"error":"Service Unavailable"}.
func isJSONRPC(message []byte) bool {
	_, ok := jsonrpc.Member(message, "jsonrpc")
	return ok
}

// maxLook is how much of a body is processed for the part that is shown.
const maxLook = 4 << 10

// text returns ": " and the beginning of a body, or "" if it is not plain text or JSON.
func (e *endpoint) text(kind string, body []byte) string { return e.beginning(kind, body, true) }

// beginning is like text, for a body that may have been cut off.
func (e *endpoint) beginning(kind string, body []byte, whole bool) string {
	if kind != "" && kind != "text/plain" && !strings.HasSuffix(kind, "json") {
		return "" // the first 200 bytes of an HTML page are useless
	}
	if env, err := jsonrpc.Scan(body); err == nil && env.Error != nil {
		var e struct{ Message string }
		if json.Unmarshal(env.Error, &e) == nil {
			body = []byte(e.Message)
		}
	}
	text := string(body[:min(len(body), maxLook)])
	if !whole || len(body) > maxLook {
		text = gate.RedactCut(e.hide.Redact, strings.ToValidUTF8(text, "\uFFFD")) + "…"
	}
	if s := e.quote(text, 200); s != "" {
		return ": " + s
	}
	return ""
}

// refused ends pc with the error for a status other than 2xx. A JSON-RPC error in the body is the extension's own, unless the status
// refuses the credentials, or it has no id and the status means that the request was refused before it was parsed.
func (c *Conn) refused(pc *pendingCall, s *session, resp *http.Response) error {
	r := c.at.refusal(resp)
	if s.lostBy(r, pc.id) {
		return &lostError{c.at.refusedError(pc, r)}
	}
	id := string(r.env.ID)
	if r.env.Error != nil && !refusesCredentials(r.status) && (id != "" && id != "null" || !refusesUnread(r.status)) {
		if answered, _ := c.message(r.raw, pc, s); answered {
			return nil
		}
	}
	return &statusError{r.status, c.at.refusedError(pc, r)}
}

// refusesCredentials reports whether a status means that the credentials are wrong.
func refusesCredentials(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusProxyAuthRequired
}

// refusesUnread reports whether a status refuses the caller's credentials or rate, or the size of the request, before it was read.
func refusesUnread(code int) bool {
	return refusesCredentials(code) || code == http.StatusForbidden || code == http.StatusTooManyRequests || code == http.StatusRequestEntityTooLarge
}

// rateLimitPause is when a call that was refused with 429 may be repeated if the server does not state it: callers repeat a call at
// once that a bridge has no room for.
const rateLimitPause = 5 * time.Second

// refusedError returns the error for a refusal.
func (e *endpoint) refusedError(pc *pendingCall, r *refusal) *rpc.Error {
	line := statusLine(r.status)
	code, ran := classify(r.status)
	d := rpc.Details{Ran: ran, Status: line, Reason: line, RetryAfterMS: r.retry.Milliseconds()}
	if code == rpc.CodeUnavailable && ran == rpc.RanNo { // the same request would be refused again
		d.State = string(heartbeat.Failed)
	}
	if code == rpc.CodeOverloaded && d.RetryAfterMS == 0 {
		d.RetryAfterMS = rateLimitPause.Milliseconds()
	}
	if code == rpc.CodeTooLarge {
		d.Size = int64(len(pc.body))
	}
	return rpc.NewError(code, d, "%s answered %s%s%s", e.name, line, r.text, hint(pc.method, r.status))
}

// classify returns the mesh's error code for a status, and whether the tool may have run. A gateway can answer 502, 503
// or 504 after it has forwarded the request.
func classify(status int) (rpc.Code, rpc.Ran) {
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

// hint returns advice for a status that has one usual cause.
func hint(method string, status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "; are the headers of [transport] right?"
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		if method == "initialize" {
			return "; is the url right? For an MCP server it must be the endpoint for streamable HTTP, not for HTTP+SSE"
		}
	}
	return ""
}

// retryAfter parses the header, in either of its forms. An invalid value or a time in the past counts as 0.
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

// statusError is a response with an HTTP status that is not an answer.
type statusError struct {
	status int
	err    *rpc.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// lostError means that the server has lost the session; err is returned if the call is not sent again.
type lostError struct{ err *rpc.Error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }
