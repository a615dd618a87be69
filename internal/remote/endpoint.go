package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// endpoint is the address that requests are sent to, and what is sent with each of them.
type endpoint struct {
	name   string // scheme and host, the only part of the URL that may be shown
	url    string
	host   string // Host header; "" for the URL's host
	header http.Header
	max    int64 // bytes of one body or event
	to     addresses
	hide   *gate.Redactor
	base   *http.Client // the client of a test, or nil
	client *http.Client // set by connect
	bad    error        // why no request can be sent
}

// newEndpoint parses a URL. A user and password in it become a header, as in net/http, except that this header is kept
// over a redirect on the same host.
func newEndpoint(cfg Config) *endpoint {
	headers := cfg.Headers
	e := &endpoint{header: http.Header{"User-Agent": {"extmesh"}}, max: cmp.Or(max(cfg.MaxResult, 0), DefaultMaxResult), to: addresses{refusedNetworks, cfg.Allow}}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		e.name = "the endpoint"
		e.bad = errors.New("the url is not http(s)://host[:port][/path]")
		return e
	}
	e.hide = secrets(u, headers)
	if u.User != nil {
		password, _ := u.User.Password()
		r := http.Request{Header: e.header}
		r.SetBasicAuth(u.User.Username(), password)
		u.User = nil
	}
	for name, value := range headers {
		e.header.Set(name, value)
		if http.CanonicalHeaderKey(name) == "Host" { // net/http takes it from Request.Host only
			e.host = value
		}
	}
	e.name, e.url = origin(u), u.String()
	e.bad = e.to.checkURL(u)
	return e
}

func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// secrets returns a Redactor for what must not be shown: the values of all headers except a few harmless ones, and from
// the URL the user and password, the values of the query, and path segments that are as long as a token.
func secrets(u *url.URL, headers map[string]string) *gate.Redactor {
	values := map[string]string{}
	for name, value := range headers {
		switch http.CanonicalHeaderKey(name) {
		case "Accept", "Accept-Language", "Content-Type", "Host", "User-Agent":
		default: // also the token of "Bearer token": for a Redactor each line is a separate value
			values[name] = value + "\n" + strings.Join(strings.Fields(value), "\n")
		}
	}
	var parts []string
	if u.User != nil {
		password, _ := u.User.Password()
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth(u.User.Username(), password)
		parts = append(parts, u.User.Username(), password, strings.TrimPrefix(r.Header.Get("Authorization"), "Basic "))
	}
	for _, v := range u.Query() {
		parts = append(parts, v...)
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		if len(part) >= 16 {
			parts = append(parts, part)
		}
	}
	values["url"] = strings.Join(parts, "\n")
	return gate.NewRedactor(nil, slices.Collect(maps.Keys(values)), values)
}

// Secrets returns a Redactor for what must not be shown of a URL and its headers; see secrets.
func Secrets(address string, headers map[string]string) *gate.Redactor {
	u, err := url.Parse(address)
	if err != nil { // it is not used
		return nil
	}
	return secrets(u, headers)
}

// connect makes the client. Its connections, including those that are still being dialled, end with ctx.
func (e *endpoint) connect(ctx context.Context) {
	c := http.Client{}
	if e.base != nil {
		c = *e.base
		c.Timeout = 0 // each request has its own
	} else {
		c.Transport = newTransport(ctx, e.to)
	}
	c.CheckRedirect = e.checkRedirect
	e.client = &c
}

// newTransport returns a transport like http.DefaultTransport, with the differences described here.
func newTransport(connected context.Context, to addresses) *http.Transport {
	dialer := net.Dialer{Timeout: 10 * time.Second, ControlContext: to.control}
	return &http.Transport{
		Proxy: proxy,
		// A transport continues to dial for later requests after the request that started it has ended. Dialling must
		// end before Run returns.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(connected, cancel)()
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &boundConn{conn, context.AfterFunc(connected, func() { conn.Close() })}, nil
		},
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// Without pings, every call to a peer that has disappeared would time out until the kernel closes the
		// connection: ending a request does not end an HTTP/2 connection.
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		DisableCompression:     true, // limits on bytes do not protect against compression bombs
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    256, // the number of calls that a bridge runs concurrently
		// Node and uvicorn close connections after 5 s without traffic. A request sent at that moment fails and may have
		// run.
		IdleConnTimeout: 4 * time.Second,
	}
}

// proxy returns the proxy from the environment, as for every Go program. It replaces the error, which would contain
// the URL with its password.
func proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("HTTP_PROXY or HTTPS_PROXY in the environment is not the URL of a proxy")
	}
	return u, nil
}

// boundConn is a connection that is closed when Run ends.
type boundConn struct {
	net.Conn
	unbind func() bool
}

func (b *boundConn) Close() error {
	b.unbind()
	return b.Conn.Close()
}

// do sends one request. The headers in extra override the endpoint's own.
func (e *endpoint) do(ctx context.Context, method string, body []byte, extra http.Header) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body) // can be read again after a redirect
	}
	req, err := http.NewRequestWithContext(ctx, method, e.url, r)
	if err != nil {
		return nil, err
	}
	req.Host = e.host
	maps.Copy(req.Header, e.header)
	maps.Copy(req.Header, extra)
	req.Header.Set("Accept-Encoding", "identity")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return e.client.Do(req)
}

// fault returns the error for a request that has failed without an answer.
func (e *endpoint) fault(err error, ran rpc.Ran) *rpc.Error {
	if r, ok := errors.AsType[*redirectError](err); ok {
		return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, State: string(heartbeat.Failed), Reason: "redirect"}, "%s %v", e.name, r)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL
	}
	why := e.quote(err.Error(), 300)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" || ran == rpc.RanNo {
		return rpc.NewError(rpc.CodeUnavailable, rpc.Details{Ran: rpc.RanNo, Reason: why}, "%s cannot be reached: %s", e.name, why)
	}
	return rpc.NewError(rpc.CodeExited, rpc.Details{Ran: rpc.RanMaybe, Reason: why},
		"the connection to %s ended before the answer: %s", e.name, why)
}

// quote prepares text from the server for a message: one line of at most n bytes, without secrets.
func (e *endpoint) quote(text string, n int) string {
	text = e.hide.Redact(strings.ToValidUTF8(text, "\uFFFD"))
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) <= n {
		return text
	}
	for n -= len("…"); n > 0 && !utf8.RuneStart(text[n]); {
		n--
	}
	return text[:n] + "…"
}
