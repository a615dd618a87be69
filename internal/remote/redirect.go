package remote

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const maxRedirects = 5

// redirectError is a redirect that is not followed.
type redirectError struct {
	status int
	to     string // shortened
	why    string
}

func (e *redirectError) Error() string {
	return fmt.Sprintf("answered %s to %s, which is not followed: %s", statusLine(e.status), e.to, e.why)
}

// checkRedirect allows only redirects that keep the credentials and the message on the configured server: the same
// host, never from https to http, and the same method and body, which for a POST means 307 and 308.
func (e *endpoint) checkRedirect(req *http.Request, via []*http.Request) error {
	from, to := via[len(via)-1], req.URL
	refuse := func(format string, args ...any) error {
		return &redirectError{req.Response.StatusCode, e.quote(origin(to)+to.EscapedPath(), 200), fmt.Sprintf(format, args...)}
	}
	switch {
	case from.URL.Scheme != to.Scheme && (from.URL.Scheme != "http" || to.Scheme != "https"):
		return refuse("it leads from %s to %s", from.URL.Scheme, e.quote(to.Scheme, 20))
	case !sameHost(from.URL, to):
		return refuse("it leads to another host; if that is right, change the url")
	case req.Method != from.Method:
		return refuse("it changes a %s into a %s; if that is right, change the url", from.Method, req.Method)
	case len(via) > maxRedirects:
		return refuse("there were %d before it", maxRedirects)
	}
	req.Host = from.Host
	return nil
}

// sameHost allows another port only together with another scheme: a program on another port may belong to another user.
func sameHost(from, to *url.URL) bool {
	if !strings.EqualFold(from.Hostname(), to.Hostname()) {
		return false
	}
	return from.Scheme != to.Scheme || port(from) == port(to)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
