package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// probeHTTP asks an endpoint with HEAD and, where that says nothing good, with GET: an answer that shows somebody
// there who knows the path and the credentials is enough. Most endpoints take only POST and say 405.
func probeHTTP(ctx context.Context, t manifest.Transport) (detail string, err error) {
	client := &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		// The headers hold credentials, which are for this address only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		var status int
		if status, err = askHTTP(ctx, client, method, t); err != nil {
			continue
		}
		detail = fmt.Sprintf("%s: %d %s", method, status, http.StatusText(status))
		if err = badStatus(method, status); err == nil {
			return detail, nil
		}
	}
	return "", err
}

func askHTTP(ctx context.Context, client *http.Client, method string, t manifest.Transport) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, t.URL, nil)
	if err != nil {
		return 0, errors.New("its URL cannot be used") // which may be a secret
	}
	for name, value := range t.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := client.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", method, err)
	}
	_ = resp.Body.Close() // unread: a GET may open a stream without end
	return resp.StatusCode, nil
}

// badStatus says what is wrong with an answer, nil if it shows life.
func badStatus(method string, status int) error {
	what := ""
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		what = "the credentials in headers are refused"
	case status == http.StatusNotFound, status == http.StatusGone:
		what = "there is nothing at the path"
	case status >= 300 && status < 400:
		what = "it sends callers elsewhere, which a bridge does not follow with its credentials"
	case status >= 500 && status != http.StatusNotImplemented:
		what = "the server is in trouble"
	default:
		return nil
	}
	return fmt.Errorf("%s: %d %s: %s", method, status, http.StatusText(status), what)
}
