package door

import (
	"fmt"
	"math"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/mcp"
)

// checkOrigin refuses requests that a web page of somebody else has caused: with a foreign Host, after DNS rebinding, or
// with a foreign Origin.
func (h *httpServer) checkOrigin(w http.ResponseWriter, r *http.Request) *fault {
	if host := hostName(r.Host); !h.opt.AnyHost && !isLoopbackName(host) && !slices.Contains(h.opt.Hosts, host) {
		return &fault{http.StatusForbidden, "the host of the request is not one of this server: allow it with --allow-host", "host"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if len(r.Header.Values("Origin")) > 1 || !h.permitsOrigin(origin) {
		return &fault{http.StatusForbidden, "web pages of this origin may not use the server: allow it with --allow-origin", "origin"}
	}
	if len(h.opt.Origins) > 0 {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After")
		w.Header().Add("Vary", "Origin")
	}
	return nil
}

// permitsOrigin reports whether web pages of an origin may use the server.
func (h *httpServer) permitsOrigin(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" {
		return false // null, for one
	}
	for _, allowed := range h.opt.Origins {
		scheme, domain, wild := strings.Cut(allowed, "://*.")
		switch {
		case origin == allowed:
			return true
		case wild && u.Scheme == scheme && strings.HasSuffix(u.Host, "."+domain):
			return true
		}
	}
	return len(h.opt.Origins) == 0 && !h.opt.AnyHost && isLoopbackName(strings.ToLower(u.Hostname()))
}

// hostName is the name in a Host header, without the port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func isLoopbackName(name string) bool {
	if name == "localhost" {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}

// preflight answers a browser's question whether a page may send a request.
func (h *httpServer) preflight(w http.ResponseWriter, r *http.Request) {
	if len(h.opt.Origins) == 0 || r.Header.Get("Origin") == "" {
		w.Header().Set("Allow", "POST, GET, DELETE")
		(&fault{status: http.StatusMethodNotAllowed, text: "want POST, GET or DELETE"}).write(w)
		return
	}
	allowed := []string{"Authorization", "Content-Type", "Accept", "MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", "Last-Event-ID"}
	for name := range strings.SplitSeq(r.Header.Get("Access-Control-Request-Headers"), ",") {
		if name = strings.TrimSpace(name); strings.HasPrefix(strings.ToLower(name), "mcp-param-") && len(name) < 100 {
			allowed = append(allowed, name)
		}
	}
	w.Header().Set("Access-Control-Allow-Methods", "POST, GET, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", strings.Join(allowed, ", "))
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// authenticate returns the token of the client: zero if the server does not authenticate.
func (h *httpServer) authenticate(w http.ResponseWriter, r *http.Request, v *viewState) (config.Token, *fault) {
	if h.opt.Tokens == nil {
		return config.Token{}, nil
	}
	token := bearer(r)
	if token == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return config.Token{}, &fault{http.StatusUnauthorized, "a bearer token is required in the header Authorization", "token"}
	}
	known, ok := h.opt.Tokens.find(token)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return config.Token{}, &fault{http.StatusUnauthorized, "the bearer token is unknown or has expired", "token"}
	}
	if !known.Permits(v.profile) {
		return known, &fault{http.StatusForbidden, "the bearer token is not valid for this profile", "profile"}
	}
	return known, nil
}

// bearer returns the bearer token of a request, or "".
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// permits reports whether there still is a token with the name and the credentials of a client.
func (h *httpServer) permits(c *client) bool {
	return h.opt.Tokens == nil || h.opt.Tokens.permit(c.principal, c.natsContext, c.view.profile)
}

// isStillPermitted reports whether the client of a stream would be permitted to open it now.
func (x *exchange) isStillPermitted() bool {
	if x.h.opt.Tokens == nil {
		return true
	}
	known, ok := x.h.opt.Tokens.find(bearer(x.r))
	return ok && known.Name == x.token.Name && known.Context == x.token.Context && known.Permits(x.view.profile)
}

// checkRate refuses a request of a client that sends too many.
func (x *exchange) checkRate() *fault {
	if x.h.opt.Rate <= 0 {
		return nil
	}
	wait, ok := x.usage.take(time.Now())
	if ok {
		return nil
	}
	x.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return &fault{http.StatusTooManyRequests, fmt.Sprintf("more than %d requests per second: try again later", x.h.opt.Rate), "rate"}
}

// tooMany refuses a request for another session or stream.
func (x *exchange) tooMany(what string) {
	x.w.Header().Set("Retry-After", "60")
	x.h.refuse(x.w, x.r, &fault{http.StatusServiceUnavailable, "there are too many " + what + ": try again later", what}, x.token.Name)
}

// checkTypes checks the headers about the format of a message.
func (x *exchange) checkTypes() *fault {
	if !isJSON(x.r.Header.Get("Content-Type")) {
		return &fault{status: http.StatusUnsupportedMediaType, text: "the Content-Type must be application/json"}
	}
	if e := x.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return &fault{status: http.StatusUnsupportedMediaType, text: "the body must not be compressed"}
	}
	json, events := x.accepts()
	if !json || !events && x.r.Header.Get(mcp.HeaderVersion) != mcp.Modern {
		return &fault{status: http.StatusNotAcceptable, text: "Accept must include application/json and text/event-stream"}
	}
	return nil
}

func isJSON(contentType string) bool {
	if contentType == jsonType[0] { // almost always, and much faster
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == jsonType[0]
}

// accepts reports which formats of answers the client takes.
func (x *exchange) accepts() (json, events bool) {
	for _, line := range x.r.Header.Values("Accept") {
		if line == "application/json, text/event-stream" { // almost always, and much faster
			return true, true
		}
		for part := range strings.SplitSeq(line, ",") {
			kind, _, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(kind)) {
			case "*/*":
				return true, true
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				events = true
			}
		}
	}
	return json, events
}
