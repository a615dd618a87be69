package remote

import (
	"context"
	"net/http"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// Probe asks whether anything answers at a URL, with HEAD and, where that brings nothing, GET. Every HTTP
// answer below 500 is life, one that refuses the method or the credentials and a redirect included: what the
// extension behind it can do only initialize would tell. ctx bounds it. The error is an *rpc.Error, of
// rpc.CodeUnavailable where nothing answers.
func Probe(ctx context.Context, url string, headers map[string]string) error {
	at := newEndpoint(url, headers, DefaultMaxResult)
	if at.bad != nil {
		return rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%v", at.bad)
	}
	wires, cut := context.WithCancel(ctx)
	defer cut()
	at.connect(wires)
	at.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer at.client.CloseIdleConnections()
	var err error
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		var resp *http.Response
		if resp, err = at.do(ctx, method, nil, http.Header{"Accept": {bothKinds}}); err != nil {
			err = at.fault(err, rpc.RanNo)
			continue
		}
		resp.Body.Close() // of a GET it may be a stream without an end
		if resp.StatusCode < 500 {
			return nil
		}
		err = rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "%s answered %s", at.name, statusLine(resp.StatusCode))
	}
	if ctx.Err() != nil {
		return rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "%s did not answer in time: %v", at.name, err)
	}
	return err
}
