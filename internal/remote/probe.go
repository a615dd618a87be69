package remote

import (
	"context"
	"net/http"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Probe checks whether a server answers at cfg's URL, with HEAD and, if that fails, GET. It uses URL, Headers and Allow.
// Every HTTP answer below 500 is a success, one that refuses the method and a redirect included; not one that refuses the
// credentials, or finds nothing at the path. Since that may be how a server answers that supports POST only, a JSON-RPC
// ping is then tried, too. ctx bounds it. The error is an *rpc.Error, of rpc.CodeUnavailable where nothing answers.
func Probe(ctx context.Context, cfg Config) error {
	at := newEndpoint(cfg)
	if at.bad != nil {
		return rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%v", at.bad)
	}
	wires, cut := context.WithCancel(ctx)
	defer cut()
	at.connect(wires)
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
			body = rpc.AppendRequest(nil, []byte("1"), "ping", nil)
		}
		var resp *http.Response
		if resp, err = at.do(ctx, method, body, http.Header{"Accept": {bothKinds}}); err != nil {
			err = at.fault(err, rpc.RanNo)
			continue
		}
		resp.Body.Close() // of a GET it may be a stream without an end
		advice, no := refusals[resp.StatusCode]
		if resp.StatusCode < 500 && !no {
			return nil
		}
		refused = no
		err = rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%s answered %s%s", at.name, statusLine(resp.StatusCode), advice)
	}
	if ctx.Err() != nil {
		return rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "%s did not answer in time: %v", at.name, err)
	}
	return err
}

// refusals are the answers of a server that lives, but is not the extension or does not let us in, and what to do.
var refusals = map[int]string{
	http.StatusUnauthorized: ": it wants credentials, or others; they belong in transport.headers",
	http.StatusForbidden:    ": it takes these credentials, but not for this; see transport.headers",
	http.StatusNotFound:     ": there is nothing at this path; see transport.url",
	http.StatusGone:         ": there is nothing at this path any more; see transport.url",
}
