package door

import (
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/mcp"
)

// checkOrigin refuses requests that a web page of somebody else has caused: with a foreign Host, after DNS rebinding, or
// with a foreign Origin.
func (h *httpServer) checkOrigin(w http.ResponseWriter, r *http.Request) *fault {
	if host := hostName(r.Host); !h.opt.AnyHost && !isLoopbackName(host) && !slices.Contains(h.opt.Hosts, host) {
		return &fault{http.StatusForbidden, "the host of the request is not one of this server: allow it with --allow-host"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	if len(r.Header.Values("Origin")) > 1 || !h.permitsOrigin(origin) {
		return &fault{http.StatusForbidden, "web pages of this origin may not use the server: allow it with --allow-origin"}
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
		(&fault{http.StatusMethodNotAllowed, "want POST, GET or DELETE"}).write(w)
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

// authenticate returns who the client is: "" if the server does not authenticate.
func (h *httpServer) authenticate(w http.ResponseWriter, r *http.Request, v *viewState) (principal string, _ *fault) {
	if h.opt.Tokens == nil {
		return "", nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return "", &fault{http.StatusUnauthorized, "a bearer token is required in the header Authorization"}
	}
	known, ok := h.opt.Tokens.find(strings.TrimSpace(token))
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return "", &fault{http.StatusUnauthorized, "the bearer token is unknown or has expired"}
	}
	if len(known.Profiles) > 0 && !slices.Contains(known.Profiles, v.profile) {
		return "", &fault{http.StatusForbidden, "the bearer token is not valid for this profile"}
	}
	return known.Name, nil
}

// checkTypes checks the headers about the format of a message.
func (x *exchange) checkTypes() *fault {
	if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &fault{http.StatusUnsupportedMediaType, "the Content-Type must be application/json"}
	}
	if e := x.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return &fault{http.StatusUnsupportedMediaType, "the body must not be compressed"}
	}
	json, events := x.accepts()
	if !json || !events && x.r.Header.Get(mcp.HeaderVersion) != mcp.Modern {
		return &fault{http.StatusNotAcceptable, "Accept must include application/json and text/event-stream"}
	}
	return nil
}

// accepts reports which formats of answers the client takes.
func (x *exchange) accepts() (json, events bool) {
	for _, line := range x.r.Header.Values("Accept") {
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
