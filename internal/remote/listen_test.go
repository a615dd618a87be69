package remote

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestListen(t *testing.T) { synctest.Test(t, testListen) }

func testListen(t *testing.T) {
	m := newPipedMCP(t)
	var mu sync.Mutex
	var asked []string
	m.get = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != eventsOnly || r.Header.Get("Mcp-Session-Id") != "session-1" {
			t.Errorf("%v", r.Header)
		}
		mu.Lock()
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		n := len(asked)
		mu.Unlock()
		switch n {
		case 1:
			events(w)("id: é\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"one\"}\n\nid: 7\ndata: %s\n\n", strings.Repeat("x", 3000))
		case 2:
			w.WriteHeader(http.StatusConflict)
		default:
			events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"two\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"ping\"}\n\n")
			<-r.Context().Done()
		}
	}
	var notes notifications
	m.connect(Config{OnNotification: notes.add, MaxResult: 2000})
	time.Sleep(10 * time.Second)
	if got := notes.list(); !slices.Equal(got, []string{"one", listChanged, "two"}) {
		t.Errorf("notifications %q", got)
	}
	if pongs := m.requests(""); !slices.ContainsFunc(pongs, func(r *request) bool { return string(r.ID) == "5" && string(r.Result) == "{}" }) {
		t.Error("ping was not answered")
	}
	if !slices.Equal(asked, []string{"", "", ""}) {
		t.Errorf("asked for %q", asked)
	}
}

// TestListenBackoff counts the requests to a server that ends each stream immediately.
func TestListenBackoff(t *testing.T) {
	for name, tt := range map[string]struct {
		get      func(w http.ResponseWriter)
		min, max int // requests within ten minutes
	}{
		"empty":          {func(w http.ResponseWriter) { events(w) }, 11, 18},
		"bad gateway":    {func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }, 11, 18},
		"one event each": {func(w http.ResponseWriter) { events(w)("data: {}\n\n") }, 400, 600},
		"retry 20 s": {func(w http.ResponseWriter) {
			events(w)("retry: 20000\ndata: {}\n\n")
		}, 20, 31},
		"retry very soon": {func(w http.ResponseWriter) {
			events(w)("retry: 0\nid: 1\ndata:\n\n")
		}, 11, 18},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newPipedMCP(t)
				n := 0
				m.get = func(w http.ResponseWriter, r *http.Request) {
					n++
					tt.get(w)
				}
				c := m.connect(Config{})
				time.Sleep(10 * time.Minute)
				c.end(t)
				if n < tt.min || n > tt.max {
					t.Errorf("asked %d times in ten minutes, want %d to %d", n, tt.min, tt.max)
				}
			})
		})
	}
}

// TestListenNotOffered: the stream is requested only once, with every status that means that there is none.
func TestListenNotOffered(t *testing.T) {
	for _, status := range []int{405, 401, 400, 404, 501 - 100, 200} {
		m := newMCP(t)
		asked := make(chan struct{}, 10)
		m.get = func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			w.WriteHeader(status)
			io.WriteString(w, "no")
		}
		c := m.connect(Config{})
		<-asked
		if _, err := c.Call(soon(t), "x", nil); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		opening := c.negotiated.opening
		c.mu.Unlock()
		if opening != nil || m.n != 1 {
			t.Errorf("%d: the session was taken for lost", status)
		}
		c.end(t)
		if len(asked) > 0 {
			t.Errorf("%d: requested again", status)
		}
	}
}

// TestListenerReopens: the request for the server's event stream finds the session lost, while there are no calls.
func TestListenerReopens(t *testing.T) { synctest.Test(t, testListenerReopens) }

func testListenerReopens(t *testing.T) {
	m := newPipedMCP(t)
	var streams atomic.Int32
	m.get = func(w http.ResponseWriter, r *http.Request) {
		if streams.Add(1) == 1 {
			events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"one\"}\n\n")
			m.loseSessions()
			return
		}
		events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"two\"}\n\n")
		<-r.Context().Done()
	}
	var notes notifications
	c := m.connect(Config{OnNotification: notes.add})
	time.Sleep(5 * time.Second)
	if got := notes.list(); !slices.Equal(got, []string{"one", listChanged, "two"}) {
		t.Errorf("%q", got)
	}
	c.end(t)
	if n := streams.Load(); n != 2 {
		t.Errorf("%d streams", n)
	}
}

// TestListenRefusedOnce: a server refuses a new stream, and then the last event, which it has forgotten.
func TestListenRefusedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPipedMCP(t)
		var last []string
		m.get = func(w http.ResponseWriter, r *http.Request) {
			switch last = append(last, r.Header.Get("Last-Event-Id")); len(last) {
			case 1:
				events(w)("id: 7\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"one\"}\n\n")
			case 2, 3:
				w.WriteHeader(http.StatusBadRequest)
			default:
				events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"two\"}\n\n")
				<-r.Context().Done()
			}
		}
		var notes notifications
		c := m.connect(Config{OnNotification: notes.add})
		time.Sleep(20 * time.Second)
		if got := notes.list(); !slices.Equal(got, []string{"one", listChanged, "two"}) {
			t.Errorf("%q", got)
		}
		c.end(t)
		if !slices.Equal(last, []string{"", "", "7", ""}) {
			t.Errorf("requested after %q", last)
		}
	})
}

// TestListenGap: after a gap in which the server's messages were lost, tools/list_changed is reported.
func TestListenGap(t *testing.T) {
	for name, tt := range map[string]struct {
		first func(w http.ResponseWriter)
		want  []string
	}{
		"between two streams":     {func(w http.ResponseWriter) { events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"one\"}\n\n") }, []string{"one", listChanged, "two"}},
		"before the first stream": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, []string{listChanged, "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newPipedMCP(t)
				streams := 0
				m.get = func(w http.ResponseWriter, r *http.Request) {
					if streams++; streams == 1 {
						tt.first(w)
						return
					}
					events(w)("data: {\"jsonrpc\":\"2.0\",\"method\":\"two\"}\n\n")
					<-r.Context().Done()
				}
				var notes notifications
				var gaps atomic.Int32
				c := m.connect(Config{OnNotification: notes.add, OnGap: func() { gaps.Add(1) }})
				time.Sleep(5 * time.Second)
				if got := notes.list(); !slices.Equal(got, tt.want) || gaps.Load() != 1 {
					t.Errorf("%q, %d gaps", got, gaps.Load())
				}
				c.end(t)
			})
		})
	}
}
