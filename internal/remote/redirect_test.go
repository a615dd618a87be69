package remote

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the other host was asked: %s %v", r.Method, r.Header)
	}))
	defer other.Close()
	for name, tt := range map[string]struct {
		status int
		to     string
		text   string // "" if it is followed
	}{
		"307":           {307, "/good", ""},
		"308":           {308, "/good", ""},
		"308, absolute": {308, "SELF/good", ""},
		"301":           {301, "/good", "changes a POST into a GET"},
		"302":           {302, "/good", "changes a POST into a GET"},
		"303":           {303, "/good", "changes a POST into a GET"},
		"another port":  {307, other.URL + "/" + secret, "leads to another host"},
		"another host":  {308, "http://localhost.example:1/" + secret + "?k=" + secret, "leads to another host"},
		"other scheme":  {307, "ftp://127.0.0.1/", "leads from http to ftp"},
		"endless":       {307, "/start", "there were 5 before it"},
		"nowhere":       {307, "", "answered 307"},
	} {
		t.Run(name, func(t *testing.T) {
			var self string
			srv := serve(t, func(w http.ResponseWriter, r *request) {
				if r.HTTP.URL.Path == "/good" {
					if got := r.HTTP.Header.Get("Authorization"); got != "Basic dTpzM2NyM3QtdDBrZW4tMDEyMzQ1Njc4OQ==" || string(r.Params) != `{"a":1.0}` || r.HTTP.Method != "POST" {
						t.Errorf("%s, Authorization %q, params %s", r.HTTP.Method, got, r.Params)
					}
					reply(w, r.ID, "1")
					return
				}
				if tt.to != "" {
					w.Header().Set("Location", strings.Replace(tt.to, "SELF", self, 1))
				}
				w.WriteHeader(tt.status)
			})
			self = srv.URL
			c := start(t, Config{URL: strings.Replace(srv.URL, "//", "//u:"+secret+"@", 1) + "/start", Dialect: manifest.Ext})
			got, err := c.Call(soon(t), "x", json.RawMessage(`{"a":1.0}`))
			if tt.text == "" {
				if err != nil || string(got) != "1" {
					t.Errorf("%s, %v", got, err)
				}
				return
			}
			e := rpc.AsError(err)
			fails(t, err, e.Code, e.Details().Ran, fmt.Sprint(tt.status), tt.text)
			if name != "nowhere" && (e.Code != rpc.CodeUnavailable || e.Details().Ran != rpc.RanNo) {
				t.Errorf("code %d, ran %s", e.Code, e.Details().Ran)
			}
		})
	}
}

func TestNoRedirectOutOfTLS(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("a request was sent to the http server") }))
	defer plain.Close()
	srv := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, Client: srv.Client()})
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "leads from https to http")
}

func TestUpgradeToTLS(t *testing.T) {
	good := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(w, parse(t, r).ID, "1") }))
	defer good.Close()
	srv := httptest.NewServer(http.RedirectHandler(good.URL, http.StatusPermanentRedirect))
	defer srv.Close()
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, Client: good.Client()})
	if got, err := c.Call(soon(t), "x", nil); err != nil || string(got) != "1" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		head, get, post int // statuses; 0: the connection is cut
		text            string
	}{
		"fine":         {200, 500, 500, ""},
		"no HEAD":      {501, 200, 500, ""},
		"HEAD cut":     {0, 405, 500, ""},
		"redirected":   {307, 500, 500, ""},
		"broken":       {502, 503, 200, "answered 503"},
		"cut":          {0, 0, 200, "cannot be reached"},
		"POST only":    {404, 404, 200, ""},
		"no session":   {404, 404, 400, ""},
		"only do_POST": {501, 501, 200, ""},
		"proxy":        {407, 407, 407, "answered 407 Proxy Authentication Required: the proxy"},
		"unauthorised": {401, 401, 401, "answered 401 Unauthorized: it requires credentials"},
		"forbidden":    {405, 405, 403, ""}, // no POST is sent
		"wrong path":   {404, 404, 404, "answered 404 Not Found: there is nothing at this path; check transport.url"},
		"gone":         {501, 410, 410, "answered 410 Gone"},
		"broken POST":  {401, 401, 500, "answered 500"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Key") != secret {
				t.Errorf("%v", r.Header)
			}
			status := map[string]int{"HEAD": tt.head, "GET": tt.get, "POST": tt.post}[r.Method]
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			if status == 307 {
				w.Header().Set("Location", "http://elsewhere.example/")
			}
			w.WriteHeader(status)
			if status == 200 && r.Method == http.MethodGet { // an endless stream
				events(w)
				<-r.Context().Done()
			}
		}))
		err := Probe(soon(t), Config{URL: srv.URL + "/" + secret, Headers: map[string]string{"X-Key": secret}})
		srv.Close()
		if tt.text == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		fails(t, err, rpc.CodeUnavailable, rpc.RanNo, tt.text)
	}
	if err := Probe(soon(t), Config{URL: "http://" + secret + "\x00"}); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
}

func TestProbeTimeout(t *testing.T) {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx := within(t, 50e6)
	fails(t, Probe(ctx, Config{URL: "http://" + l.Addr().String()}), rpc.CodeTimeout, rpc.RanNo, "in time")
}
