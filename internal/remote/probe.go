package remote

import (
	"context"
	"net/http"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// Probe checks whether a server answers at cfg's URL, with HEAD and, if that fails, GET. It uses URL, Headers and Allow.
// Every HTTP status below 500 is a success, including redirects and a refused method, except those that refuse the
// credentials or report that there is nothing at the path. Since a server that supports POST only may answer like that,
// a JSON-RPC ping is then tried. ctx limits the time. The error is an *rpc.Error, with rpc.CodeUnavailable if there is
// no answer.
func Probe(ctx context.Context, cfg Config) error {
	at := newEndpoint(cfg)
	if at.bad != nil {
		return rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%v", at.bad)
	}
	connected, disconnect := context.WithCancel(ctx)
	defer disconnect()
	at.connect(connected)
	at.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer at.client.CloseIdleConnections()
	var err error
	refused := false
	for _, method := range []string{http.MethodHead, http.MethodGet, http.MethodPost} {
		var body []byte
		if method == http.MethodPost {
			if !refused {
				break
			}
			body = jsonrpc.AppendRequest(nil, []byte("1"), "ping", nil)
		}
		var resp *http.Response
		if resp, err = at.do(ctx, method, body, http.Header{"Accept": {bothKinds}}); err != nil {
			err = at.fault(err, rpc.RanNo)
			continue
		}
		resp.Body.Close() // not read: the body of a GET may be an endless stream
		advice, no := refusals[resp.StatusCode]
		if resp.StatusCode < 500 && !no {
			return nil
		}
		refused = no || resp.StatusCode == http.StatusNotImplemented
		err = rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%s answered %s%s", at.name, statusLine(resp.StatusCode), advice)
	}
	deadline, limited := ctx.Deadline()
	if ctx.Err() != nil || limited && !time.Now().Before(deadline) { // net compares the time, and may be first
		return rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "%s did not answer in time: %v", at.name, err)
	}
	return err
}

// refusals are the statuses of a running server that is not the extension or denies access, each with advice.
var refusals = map[int]string{
	http.StatusProxyAuthRequired: ": the proxy in HTTP_PROXY or HTTPS_PROXY requires credentials",
	http.StatusUnauthorized:      ": it requires credentials, or other ones; set them in transport.headers",
	http.StatusForbidden:         ": these credentials do not permit the request; check transport.headers",
	http.StatusNotFound:          ": there is nothing at this path; check transport.url",
	http.StatusGone:              ": there is nothing at this path any more; check transport.url",
}
