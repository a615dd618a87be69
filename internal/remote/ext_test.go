package remote

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestExtPassesBytes(t *testing.T) {
	const params = `{"z":1e400, "a":9007199254740993,"b":1.0,"s":"<&\u00e9>"}`
	const result = `{"b" : 9007199254740993,"a":[1.0,1e400],"unknown":{"x":null}}`
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		h := r.HTTP.Header
		if r.HTTP.Method != "POST" || h.Get("Content-Type") != "application/json" || h.Get("Accept") != "application/json" ||
			h.Get("X-Api-Key") != secret || h.Get("User-Agent") != "extmesh" || r.HTTP.Host != "tools.internal" {
			t.Errorf("%s, Host %s, %v", r.HTTP.Method, r.HTTP.Host, h)
		}
		if r.Method != "tools/add" || string(r.Params) != params {
			t.Errorf("%s %s", r.Method, r.Params)
		}
		io.WriteString(w, ` {"jsonrpc":"2.0","result":`+result+`,"id":`+string(r.ID)+`,"extra":1}`+"\n")
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, Headers: map[string]string{"x-api-key": secret, "host": "tools.internal"}})
	got, err := c.Call(soon(t), "tools/add", json.RawMessage(params))
	if err != nil || string(got) != result {
		t.Fatalf("%s, %v", got, err)
	}
	sink := make(ended, 1)
	c.Start(&jsonrpc.Exchange{Method: "tools/add", Params: []byte(params), Sink: sink})
	r := <-sink
	if text := string(r.AppendTo(nil, []byte(`"mine"`))); text != `{"jsonrpc":"2.0","result":`+result+`,"id":"mine","extra":1}` {
		t.Errorf("forwarded as %s", text)
	}
}

// TestAnswers covers all forms of an answer.
func TestAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		body string // ID stands for the request's id
		want string // the result or the error's message
		ok   bool
	}{
		"plain":          {`{"jsonrpc":"2.0","id":ID,"result":1}`, "1", true},
		"string id":      {`{"jsonrpc":"2.0","id":"ID","result":1}`, "1", true},
		"fraction id":    {`{"jsonrpc":"2.0","id":ID.0,"result":1}`, "1", true},
		"no id":          {`{"jsonrpc":"2.0","result":1}`, "1", true},
		"null id":        {`{"jsonrpc":"2.0","id":null,"error":{"code":5,"message":"own"}}`, "own", false},
		"error, no id":   {`{"jsonrpc":"2.0","error":{"code":5,"message":"own"}}`, "own", false},
		"other id":       {`{"jsonrpc":"2.0","id":77,"result":1}`, "it answers another request", false},
		"odd id":         {`{"jsonrpc":"2.0","id":true,"result":1}`, "it answers another request", false},
		"no version":     {`{"id":ID,"result":1}`, "1", true},
		"odd error":      {`{"jsonrpc":"2.0","id":ID,"error":"broken"}`, "broken", false},
		"neither":        {`{"jsonrpc":"2.0","id":ID}`, "neither a result nor an error", false},
		"byte order":     {"\ufeff" + `{"jsonrpc":"2.0","id":ID,"result":1}`, "1", true},
		"over lines":     {"{\n \"jsonrpc\":\"2.0\",\r\n\"id\":ID,\"result\":\n1\n}\n", "1", true},
		"broken utf-8":   {`{"jsonrpc":"2.0","id":ID,"result":"` + "\xff" + `"}`, `"` + "\ufffd" + `"`, true},
		"nothing":        {``, "with an empty body", false},
		"no JSON":        {`{"jsonrpc":"2.0","id":ID,"result":NaN}`, "not JSON", false},
		"cut off":        {`{"jsonrpc":"2.0","id":ID,"resu`, "not JSON", false},
		"a notification": {`{"jsonrpc":"2.0","method":"n"}`, "it is not an answer", false},
		"a batch":        {`[{"jsonrpc":"2.0","id":ID,"result":1}]`, "it is not JSON: want a JSON object", false},
		"a number":       {`7`, "not JSON", false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *request) {
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, strings.ReplaceAll(tt.body, "ID", string(r.ID)))
			})
			c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
			sink := make(ended, 1)
			c.Start(&jsonrpc.Exchange{Method: "x", Sink: sink, Deadline: time.Now().Add(time.Minute)})
			r := <-sink
			result, err := r.Result()
			if tt.ok && (err != nil || string(result) != tt.want) || !tt.ok && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %s, %v, want %s", result, err, tt.want)
			}
			if text := r.AppendTo(nil, []byte("5")); !json.Valid(text) || !strings.Contains(string(text), `"id":5`) {
				t.Errorf("forwarded as %s", text)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	const own = `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"own words","data":{"n":1e400}}}`
	null := strings.Replace(own, "ID", "null", 1)
	for name, tt := range map[string]struct {
		status int
		header map[string]string
		body   string
		code   rpc.Code
		ran    rpc.Ran // "" for the extension's own error
		text   []string
		retry  int64
	}{
		"401":                {status: 401, body: "no such token: " + secret, code: rpc.CodeUnavailable, ran: "no", text: []string{"401 Unauthorized: no such token: [", "headers"}},
		"401 with null id":   {status: 401, body: null, code: rpc.CodeUnavailable, ran: "no", text: []string{"401", "own words"}},
		"401 with the id":    {status: 401, body: own, code: rpc.CodeUnavailable, ran: "no", text: []string{"401", "own words"}},
		"403":                {status: 403, code: rpc.CodeUnavailable, ran: "no", text: []string{"403 Forbidden"}},
		"403 of its own":     {status: 403, body: own, code: -32000, text: []string{"own words"}},
		"404":                {status: 404, body: "not here", code: rpc.CodeUnavailable, ran: "no", text: []string{"404 Not Found: not here"}},
		"400":                {status: 400, body: "what?\n\tsay \x1b[1magain", code: rpc.CodeInternal, ran: "maybe", text: []string{"400 Bad Request: what? say [1magain"}},
		"400 of its own":     {status: 400, body: own, code: -32000, text: []string{"own words"}},
		"400 with null id":   {status: 400, body: null, code: -32000, text: []string{"own words"}},
		"413":                {status: 413, code: rpc.CodeTooLarge, ran: "no", text: []string{"413"}},
		"418":                {status: 418, code: rpc.CodeInternal, ran: "maybe", text: []string{"418"}},
		"429":                {status: 429, header: map[string]string{"Retry-After": "7"}, code: rpc.CodeOverloaded, ran: "no", text: []string{"429"}, retry: 7000},
		"429 without number": {status: 429, header: map[string]string{"Retry-After": "soon"}, body: null, code: rpc.CodeOverloaded, ran: "no", text: []string{"429", "own words"}, retry: 5000},
		"500":                {status: 500, body: strings.Repeat("é", 300), code: rpc.CodeInternal, ran: "maybe", text: []string{"500 Internal Server Error: éé"}},
		"500 of its own":     {status: 500, body: own, code: -32000, text: []string{"own words"}},
		"502":                {status: 502, header: map[string]string{"Content-Type": "text/html"}, body: "<html>bad</html>", code: rpc.CodeUnavailable, ran: "maybe", text: []string{"502 Bad Gateway"}},
		"503":                {status: 503, header: map[string]string{"Retry-After": "99999999"}, code: rpc.CodeUnavailable, ran: "maybe", text: []string{"503"}, retry: 3600_000},
		"503 of a framework": {status: 503, body: `{"status":503,"error":"Service Unavailable"}`, code: rpc.CodeUnavailable, ran: "maybe", text: []string{"503 Service Unavailable"}},
		"504":                {status: 504, body: `{"detail":"slow"}`, header: map[string]string{"Content-Type": "application/problem+json"}, code: rpc.CodeUnavailable, ran: "maybe", text: []string{`504 Gateway Timeout: {"detail":"slow"}`}},
		"599":                {status: 599, code: rpc.CodeUnavailable, ran: "maybe", text: []string{"answered 599"}},
		"304":                {status: 304, code: rpc.CodeInternal, ran: "maybe", text: []string{"304"}},
		"204 to a call":      {status: 204, code: rpc.CodeInternal, ran: "maybe", text: []string{"204 No Content to x with an empty body"}},
		"200 with a page":    {status: 200, header: map[string]string{"Content-Type": "text/html"}, body: "<html>", code: rpc.CodeInternal, ran: "maybe", text: []string{`"text/html" instead of JSON`}},
		"200 with words":     {status: 200, header: map[string]string{"Content-Type": "text/plain"}, body: "welcome " + secret, code: rpc.CodeInternal, ran: "maybe", text: []string{`instead of JSON: welcome [`}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *request) {
				w.Header().Set("X-Secret", secret)
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, strings.ReplaceAll(tt.body, "ID", string(r.ID)))
			})
			address := strings.Replace(srv.URL, "http://", "http://user:"+secret+"@", 1)
			for _, dialect := range []manifest.Dialect{manifest.Ext, manifest.MCP, manifest.Auto} {
				c := start(t, Config{URL: address + "/rpc?key=" + secret, Dialect: dialect, Headers: map[string]string{"X-Key": secret}})
				_, err := c.Call(soon(t), "x", nil)
				d := fails(t, err, tt.code, tt.ran, tt.text...)
				if d.RetryAfterMS != tt.retry {
					t.Errorf("retry after %d ms, want %d", d.RetryAfterMS, tt.retry)
				}
				if len(err.Error()) > 350 {
					t.Errorf("%d bytes of error: %v", len(err.Error()), err)
				}
				if e, _ := errors.AsType[*rpc.Error](err); tt.ran == "" && string(e.Data) != `{"n":1e400}` {
					t.Errorf("data %s", e.Data)
				}
			}
		})
	}
}

// TestStalledRefusal: the status is returned immediately although the server never ends the body.
func TestStalledRefusal(t *testing.T) {
	release := make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		w.WriteHeader(503)
		io.WriteString(w, "wait for it")
		http.NewResponseController(w).Flush()
		<-release
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
	began := time.Now()
	_, err := c.Call(soon(t), "x", nil)
	close(release)
	fails(t, err, rpc.CodeUnavailable, rpc.RanMaybe, "503 Service Unavailable: wait for it")
	if d := time.Since(began); d > 50*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestUnreachable(t *testing.T) {
	refused := func(t *testing.T) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}
	tlsServer := httptest.NewTLSServer(http.NotFoundHandler())
	defer tlsServer.Close()
	tlsServer.Config.ErrorLog = nil
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	slam := func(after func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		t.Cleanup(func() { l.Close(); wg.Wait() })
		wg.Go(func() { // owned by the test; ends with the listener
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				after(conn)
				conn.Close()
			}
		})
		return "http://" + l.Addr().String()
	}
	readHead := func(c net.Conn) { c.Read(make([]byte, 4<<10)) }
	for name, tt := range map[string]struct {
		url  string
		code rpc.Code
		ran  rpc.Ran
		text string
	}{
		"refused":        {refused(t), rpc.CodeUnavailable, "no", "connection refused"},
		"no certificate": {tlsServer.URL, rpc.CodeUnavailable, "no", "certificate"},
		"no TLS":         {strings.Replace(plain.URL, "http:", "https:", 1), rpc.CodeUnavailable, "no", "cannot be reached"},
		"no URL":         {"ftp://x/" + secret, rpc.CodeExited, "no", "not http(s)"},
		"slammed":        {slam(readHead), rpc.CodeExited, "maybe", "ended before the answer"},
		"half an answer": {slam(func(c net.Conn) { readHead(c); io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{") }), rpc.CodeExited, "maybe", "unexpected EOF"},
		"no HTTP":        {slam(func(c net.Conn) { readHead(c); io.WriteString(c, strings.Repeat("x", 4000)+"\r\n\r\n") }), rpc.CodeExited, "maybe", "malformed HTTP"},
		"endless header": {slam(func(c net.Conn) {
			readHead(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 300<<10))
		}), rpc.CodeExited, "maybe", "headers exceeded"},
		"endless 1xx": {slam(func(c net.Conn) {
			readHead(c)
			io.WriteString(c, strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n", 20000))
		}), rpc.CodeExited, "maybe", "ended before"},
		"too many headers": {slam(func(c net.Conn) {
			readHead(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\n"+strings.Repeat("X: y\r\n", 200000))
		}), rpc.CodeExited, "maybe", "headers exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, Config{URL: tt.url, Dialect: manifest.Ext, Headers: map[string]string{"A": secret}})
			_, err := c.Call(soon(t), "x", nil)
			fails(t, err, tt.code, tt.ran, tt.text)
			if len(err.Error()) > 500 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
		})
	}
}

func TestSizes(t *testing.T) {
	const limit = 64 << 10
	text := func(n int) string { return strings.Repeat("a", n) }
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, r *request)
		size   int64 // 0: it passes
	}{
		"at the limit": {func(w http.ResponseWriter, r *request) {
			head := `{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":"`
			io.WriteString(w, head+text(limit-len(head)-2)+`"}`)
		}, 0},
		"Content-Length too long": {func(w http.ResponseWriter, r *request) {
			w.Header().Set("Content-Length", "100000000000")
			io.WriteString(w, `{"jsonrpc"`)
		}, 100000000000},
		"endless": {func(w http.ResponseWriter, r *request) {
			for {
				if _, err := io.WriteString(w, text(32<<10)); err != nil {
					return
				}
			}
		}, limit + 1},
		"an endless event": {func(w http.ResponseWriter, r *request) {
			send := events(w)
			for send("data: "); ; {
				if _, err := io.WriteString(w, text(32<<10)); err != nil {
					return
				}
			}
		}, -1},
		"an event of endless lines": {func(w http.ResponseWriter, r *request) {
			for events(w); ; {
				if _, err := io.WriteString(w, "data: "+text(1000)+"\n"); err != nil {
					return
				}
			}
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, tt.answer)
			c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, MaxResult: limit})
			_, err := c.Call(soon(t), "x", nil)
			if tt.size == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			d := fails(t, err, rpc.CodeTooLarge, rpc.RanMaybe, "over the limit")
			if d.Limit != limit || tt.size > 0 && d.Size != tt.size || d.Size <= limit {
				t.Errorf("size %d, limit %d, want %d", d.Size, d.Limit, tt.size)
			}
		})
	}
}

func TestCompressed(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		if got := r.HTTP.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding %q", got)
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprintf(z, `{"jsonrpc":"2.0","id":%s,"result":1}`, r.ID)
		z.Close()
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeInternal, rpc.RanMaybe, `Content-Encoding "gzip"`)
}

// TestDeadline: a call ends at its deadline, wherever it is then. It may have run if the request was sent.
func TestDeadline(t *testing.T) {
	test := func(t *testing.T, c *runningConn, ran rpc.Ran) {
		const enough = 2 * time.Second
		began, sink := time.Now(), make(ended, 1)
		c.Start(&jsonrpc.Exchange{Method: "x", Sink: sink, Deadline: began.Add(enough)})
		_, err := c.Call(within(t, enough), "x", nil)
		r := <-sink
		if d := time.Since(began); d > 50*time.Second {
			t.Errorf("took %s", d)
		}
		for _, err := range []error{r.Err, err} {
			fails(t, err, rpc.CodeTimeout, ran, "no answer to x in time")
		}
	}
	t.Run("connecting", func(t *testing.T) {
		t.Parallel()
		mute, err := net.Listen("tcp", "127.0.0.1:0") // never accepts, so a TLS handshake never ends
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		test(t, start(t, Config{URL: "https://" + mute.Addr().String(), Dialect: manifest.Auto}), rpc.RanNo)
	})
	for name, before := range map[string]func(w http.ResponseWriter){
		"answering": func(http.ResponseWriter) {},
		"dribbling": func(w http.ResponseWriter) {
			io.WriteString(w, `{"jsonrpc":`)
			http.NewResponseController(w).Flush()
		},
		"streaming": func(w http.ResponseWriter) { events(w)(": hold on\n\n") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the request has to be sent before its deadline
				m := newPipedMCP(t)
				gone := make(chan struct{}, 2)
				m.call = func(w http.ResponseWriter, r *request) {
					before(w)
					<-r.HTTP.Context().Done()
					gone <- struct{}{}
				}
				c := m.connect(Config{})
				test(t, c, rpc.RanMaybe)
				for range 2 {
					<-gone // the server sees the end of both requests
				}
				c.end(t)
			})
		})
	}
}

func TestCancel(t *testing.T) {
	arrived, gone := make(chan json.RawMessage), make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		arrived <- r.ID
		<-r.HTTP.Context().Done()
		close(gone)
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.MCP})
	sink := make(ended, 2)
	x := &jsonrpc.Exchange{Method: "x", Sink: sink}
	c.Start(x)
	id := <-arrived
	got, ok := c.Cancel(x)
	if !ok || fmt.Sprint(got) != string(id) {
		t.Errorf("Cancel: %d, %v, want %s", got, ok, id)
	}
	r := <-sink
	fails(t, r.Err, rpc.CodeCancelled, rpc.RanMaybe)
	<-gone
	if _, ok := c.Cancel(x); ok {
		t.Error("cancelled twice")
	}
	c.end(t)
	if len(sink) > 0 {
		t.Error("delivered twice")
	}
}

// TestBeforeRun starts and cancels calls before Run.
func TestBeforeRun(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *request) { reply(w, r.ID, `"`+r.Method+`"`) })
	c := New(Config{URL: srv.URL, Dialect: manifest.Ext})
	sink := make(ended, 2)
	x, y := &jsonrpc.Exchange{Method: "x", Sink: sink}, &jsonrpc.Exchange{Method: "y", Sink: sink}
	c.Start(x)
	c.Start(y)
	if id, ok := c.Cancel(x); !ok || id != 0 {
		t.Errorf("Cancel: %d, %v", id, ok)
	}
	r := <-sink
	fails(t, r.Err, rpc.CodeCancelled, rpc.RanNo)
	if err := c.Notify("n", nil); err != nil {
		t.Error(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }() // owned here; ends with stop
	r = <-sink
	if result, err := r.Result(); string(result) != `"y"` {
		t.Errorf("%s, %v", result, err)
	}
	why := errors.New("enough")
	stop(why)
	if err := <-done; err != why {
		t.Errorf("Run: %v", err)
	}
	_, err := c.Call(soon(t), "x", nil)
	fails(t, err, rpc.CodeExited, rpc.RanNo, "enough")
	if err := c.Notify("n", nil); !errors.Is(err, rpc.CodeExited) {
		t.Errorf("Notify: %v", err)
	}
}

func TestEndFailsCalls(t *testing.T) {
	arrived := make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		close(arrived)
		<-r.HTTP.Context().Done()
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
	sink := make(ended, 1)
	c.Start(&jsonrpc.Exchange{Method: "x", Sink: sink})
	<-arrived
	c.end(t)
	r := <-sink
	fails(t, r.Err, rpc.CodeExited, rpc.RanMaybe, "ended before the answer")
}

func TestNotify(t *testing.T) {
	for _, status := range []int{200, 202, 204, 500} {
		got := make(chan *request, 4)
		srv := serve(t, func(w http.ResponseWriter, r *request) {
			got <- r
			w.WriteHeader(status)
		})
		c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
		if err := c.Notify(cancelled, json.RawMessage(`{"requestId":0}`)); err != nil { // not sent: 0 is not the id of a request
			t.Error(err)
		}
		if err := c.Notify("notifications/x", json.RawMessage(`{"a":1.0}`)); err != nil {
			t.Error(err)
		}
		if r := <-got; r.Method != "notifications/x" || string(r.Params) != `{"a":1.0}` || r.ID != nil {
			t.Errorf("%+v", r)
		}
	}
}

func TestNotifyIsBounded(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *request) { <-r.HTTP.Context().Done() })
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
	for range maxNotes {
		if err := c.Notify("n", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Notify("n", nil); !errors.Is(err, rpc.CodeOverloaded) {
		t.Errorf("got %v", err)
	}
}

// TestManyAtOnce runs 400 calls that wait for each other: with a limit on concurrent calls none would return.
func TestManyAtOnce(t *testing.T) {
	const n = 400
	var all sync.WaitGroup
	all.Add(n)
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		all.Done()
		all.Wait()
		reply(w, r.ID, string(r.Params))
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			want := fmt.Sprintf(`{"i":%d}`, i)
			got, err := c.Call(within(t, 30*time.Second), "x", json.RawMessage(want))
			if err != nil || string(got) != want {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	calls.Wait()
}

// TestEndsOnce ends calls in all ways at once: by answers, cancellation, deadlines, and Run's end.
func TestEndsOnce(t *testing.T) {
	const n = 500
	srv := serve(t, func(w http.ResponseWriter, r *request) {
		if len(r.ID)%2 == 0 {
			send := events(w)
			for range len(r.ID) {
				send("data: {\"method\":\"n\"}\n\n")
			}
			send("data: {\"id\":%s,\"result\":1}\n\n", r.ID)
			return
		}
		reply(w, r.ID, "1")
	})
	c := start(t, Config{URL: srv.URL, Dialect: manifest.MCP})
	sink := make(ended, 2*n)
	var wg sync.WaitGroup
	for i := range n {
		x := &jsonrpc.Exchange{Method: "x", Sink: sink}
		if i%3 == 0 {
			x.Deadline = time.Now().Add(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
		c.Start(x)
		if i%3 == 1 {
			wg.Go(func() { c.Cancel(x); c.Cancel(x) })
		}
	}
	wg.Wait()
	c.end(t)
	if len(sink) != n {
		t.Errorf("%d ends of %d calls", len(sink), n)
	}
}

// TestReuse: consecutive calls use one connection, with every form of answer.
func TestReuse(t *testing.T) {
	m := newMCP(t)
	m.call = func(w http.ResponseWriter, r *request) {
		switch r.Method {
		case "events":
			events(w)("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":1}\n\n", r.ID)
		case "refusal":
			http.Error(w, "no", 500)
		default:
			reply(w, r.ID, "1")
		}
	}
	c := m.connect(Config{})
	sent := 0
	for range 10 {
		for _, method := range []string{"events", "refusal", "plain"} {
			c.Call(soon(t), method, nil)
			c.Notify("n", nil)
			sent++
			eventually(t, "the notification arrives", func() bool { return len(m.requests("n")) == sent })
		}
	}
	conns := map[string]bool{}
	for _, method := range []string{"events", "refusal", "plain", "n"} {
		for _, r := range m.requests(method) {
			conns[r.HTTP.RemoteAddr] = true
		}
	}
	if len(conns) > 8 {
		t.Errorf("%d connections", len(conns))
	}
}

func TestHTTP2(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		r := parse(t, hr)
		if hr.ProtoMajor != 2 {
			t.Errorf("%s", hr.Proto)
		}
		if r.Method == "hang" {
			close(arrived)
			<-hr.Context().Done()
			close(gone)
			return
		}
		reply(w, r.ID, "1")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, Client: srv.Client()})
	if got, err := c.Call(soon(t), "x", nil); err != nil || string(got) != "1" {
		t.Fatalf("%s, %v", got, err)
	}
	sink := make(ended, 1)
	x := &jsonrpc.Exchange{Method: "hang", Sink: sink}
	c.Start(x)
	<-arrived
	if id, ok := c.Cancel(x); !ok || id == 0 {
		t.Errorf("Cancel: %d, %v", id, ok)
	}
	<-gone
}

// TestSlowRefusal: the extension's own error is waited for, since it may be sent after the head of the response.
func TestSlowRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPipedMCP(t)
		m.call = func(w http.ResponseWriter, r *request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32123,"message":"no such city"}}`, r.ID)
		}
		c := m.connect(Config{})
		if _, err := c.Call(soon(t), "x", nil); !errors.Is(err, rpc.Code(-32123)) {
			t.Error(err)
		}
		c.end(t)
	})
}
