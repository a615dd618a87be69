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

// endpoint is where requests go and what goes with each of them.
type endpoint struct {
	name   string // scheme and host: all of the URL that may be shown
	url    string
	host   string // to be sent in place of the URL's; "" for the same
	header http.Header
	max    int64 // bytes of one body or event
	to     addresses
	hide   *gate.Redactor
	base   *http.Client // a test's, or nil
	client *http.Client // set by connect
	bad    error        // why none of this can work
}

// newEndpoint reads a URL. What user and password there are in it become a header, as net/http would have it,
// only that this one survives a redirect on the same host.
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
		if http.CanonicalHeaderKey(name) == "Host" { // net/http ignores it among the headers
			e.host = value
		}
	}
	e.name, e.url = origin(u), u.String()
	e.bad = e.to.checkURL(u)
	return e
}

func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// secrets knows what must not be shown: all header values but those of the harmless, and of the URL the user and
// password, the values of the query, and path segments of the length of a token.
func secrets(u *url.URL, headers map[string]string) *gate.Redactor {
	values := map[string]string{}
	for name, value := range headers {
		switch http.CanonicalHeaderKey(name) {
		case "Accept", "Accept-Language", "Content-Type", "Host", "User-Agent":
		default: // the token of "Bearer token", too: a redactor takes every line as a value of its own
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

// connect makes the client. Its connections, those that are still being made included, end with wires.
func (e *endpoint) connect(wires context.Context) {
	c := http.Client{}
	if e.base != nil {
		c = *e.base
		c.Timeout = 0 // each request has its own
	} else {
		c.Transport = newTransport(wires, e.to)
	}
	c.CheckRedirect = e.checkRedirect
	e.client = &c
}

// newTransport is http.DefaultTransport but for what is said here.
func newTransport(wires context.Context, to addresses) *http.Transport {
	dialer := net.Dialer{Timeout: 10 * time.Second, ControlContext: to.control}
	return &http.Transport{
		Proxy: proxy,
		// The transport dials on for the next request when the one that asked has ended. Nothing of that may
		// outlive Run.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(wires, cancel)()
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &wire{conn, context.AfterFunc(wires, func() { conn.Close() })}, nil
		},
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// A peer that has vanished without a word would otherwise cost every call its whole time until the
		// kernel gives up: ending a request does not end an HTTP/2 connection.
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		DisableCompression:     true, // a bound on bytes means nothing to a bomb
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    256, // as many as a bridge lets run side by side
		// Node and uvicorn close after 5 s of silence. A request that meets that moment fails and may have run.
		IdleConnTimeout: 4 * time.Second,
	}
}

// proxy is the environment's, as for every Go program. Its error would repeat the URL, password and all.
func proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("HTTP_PROXY or HTTPS_PROXY in the environment is no URL of a proxy")
	}
	return u, nil
}

// wire is a connection that ends with the Conn's life.
type wire struct {
	net.Conn
	forget func() bool
}

func (w *wire) Close() error {
	w.forget()
	return w.Conn.Close()
}

// do sends one request. extra comes on top of the endpoint's own headers.
func (e *endpoint) do(ctx context.Context, method string, body []byte, extra http.Header) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body) // which a redirect can read again
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

// fault is what a caller is told when a request has failed without an answer.
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

// quote makes text from the other side fit for a message: one line of at most n bytes, without secrets.
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
