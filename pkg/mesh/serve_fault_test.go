package mesh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// later answers each request from another goroutine: at once, after a while, or when it is cancelled.
type later struct {
	rpc.Handler
	wg      sync.WaitGroup
	pending sync.Map // *jsonrpc.Exchange → func()
}

func (l *later) HandleAsync(r *rpc.Request, x *jsonrpc.Exchange) {
	var once sync.Once
	answer := func(reply jsonrpc.Reply) {
		once.Do(func() {
			l.pending.Delete(x)
			x.Sink.Deliver(x, reply)
		})
	}
	if r.Method == "tools/now" {
		answer(jsonrpc.NewReply(r.Params, nil))
		return
	}
	l.pending.Store(x, func() { answer(jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeCancelled, rpc.RanMaybe, "cancelled")}) })
	if r.Method == "tools/never" {
		return
	}
	l.wg.Go(func() { // ends by itself
		for range rand.N(20) {
			runtime.Gosched()
			if s, ok := x.Sink.(serve.ProgressSink); ok {
				s.Progress([]byte(`{"jsonrpc":"2.0","method":"notifications/progress"}`))
			}
		}
		result := r.Params
		if r.Method == "tools/big" {
			result = json.RawMessage(`"` + strings.Repeat("x", 3<<20) + `"`)
		}
		answer(jsonrpc.NewReply(result, nil))
		if s, ok := x.Sink.(serve.ProgressSink); ok {
			s.Progress([]byte(`{"jsonrpc":"2.0","method":"too/late"}`))
		}
	})
}

func (l *later) CancelExchange(x *jsonrpc.Exchange) {
	if f, ok := l.pending.Load(x); ok {
		f.(func())()
	}
}

// TestEveryCallEndsOnce makes calls of every kind at an asynchronous handler, cancels some of them at any moment, and
// stops the service in the middle of it: each request is answered once, and nothing is left behind.
func TestEveryCallEndsOnce(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	l := &later{}
	_, stop := serveWeather(t, connect(), weather, l, serve.Options{MaxInflight: 64, DrainTimeout: 2 * time.Second})
	nc := connect()
	type call struct {
		finals  int
		seq     int
		chunked bool
	}
	var mu sync.Mutex
	calls := map[string]*call{}
	inbox := nc.NewInbox()
	if _, err := nc.Subscribe(inbox+".*", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		c := calls[m.Subject]
		if c == nil {
			t.Errorf("an answer to nothing: %s", m.Subject)
			return
		}
		kind := m.Header.Get("Ext-Frame")
		switch {
		case kind == "" || kind == "end":
			if c.finals++; c.finals > 1 {
				t.Errorf("a second answer: %.200s", m.Data)
			}
			if kind == "" && !json.Valid(m.Data) && m.Header.Get("Status") != "503" {
				t.Errorf("no JSON: %.200s", m.Data)
			}
		case kind == "chunk":
			c.seq++
			c.chunked = true
			if fmt.Sprint(c.seq) != m.Header.Get("Ext-Seq") || c.finals > 0 {
				t.Errorf("chunk %s, want %d", m.Header.Get("Ext-Seq"), c.seq)
			}
		}
		if m.Reply != "" && kind == "chunk" {
			m.Respond(nil)
		}
	}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stopping := make(chan struct{})
	for w := range 4 {
		wg.Go(func() { // ends when the service has stopped
			for i := 0; ; i++ {
				reply := fmt.Sprintf("%s.%d-%d", inbox, w, i)
				mu.Lock()
				calls[reply] = &call{}
				mu.Unlock()
				m := nats.NewMsg("ext.weather.rpc")
				m.Reply = reply
				method := []string{"now", "soon", "soon", "big", "never"}[rand.N(5)]
				if i%200 != 0 && method == "big" {
					method = "soon"
				}
				m.Data = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/` + method + `","params":{"a":1}}`)
				m.Header.Set("Ext-Call-Id", reply)
				if rand.N(2) == 0 || method == "big" {
					m.Header.Set("Ext-Stream", "1")
				}
				nc.PublishMsg(m)
				if method == "never" || rand.N(3) == 0 {
					nc.Publish("ext.weather.cancel", []byte(`{"call_id":"`+reply+`"}`))
				}
				if i%8 == 0 {
					nc.Flush()
				}
				select {
				case <-stopping:
					return
				default:
				}
			}
		})
	}
	natstest.Eventually(t, "calls are made", func() bool { mu.Lock(); defer mu.Unlock(); return len(calls) > 2000 })
	stop()
	close(stopping)
	wg.Wait()
	l.wg.Wait()
	natstest.Eventually(t, "every call has its answer", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range calls {
			if c.finals == 0 {
				return false
			}
		}
		return true
	})
	l.pending.Range(func(k, _ any) bool { t.Error("an exchange is left"); return false })
}

// TestHostileCallers checks callers that request streams and disconnect, and floods of them.
func TestHostileCallers(t *testing.T) {
	t.Parallel()
	connect := startServer(t)
	big := json.RawMessage(`"` + strings.Repeat("x", 9<<20) + `"`)
	var running atomic.Int64
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		switch r.Method {
		case "tools/big":
			return big, nil
		case "tools/last":
			return json.RawMessage(`"last"`), nil
		}
		running.Add(1)
		defer running.Add(-1)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	slot, stop := serveWeather(t, connect(), weather, h, serve.Options{MaxInflight: 40, DrainTimeout: time.Second})
	nc := connect()
	inbox, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, reply string) {
		m := nats.NewMsg("ext.weather.rpc")
		m.Reply, m.Data = reply, []byte(`{"id":1,"method":"`+method+`"}`)
		m.Header.Set("Ext-Stream", "1")
		nc.PublishMsg(m)
	}
	for range 4 {
		send("tools/big", inbox.Subject) // a caller that subscribes and acknowledges nothing
	}
	for range 2000 {
		send("tools/wait", "nobody.listens")
	}
	// An answer to a last call, whatever it is, means that all calls before it were handled or refused.
	last, err := nc.Request("ext.weather.rpc", []byte(`{"id":1,"method":"tools/last"}`), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("behind the flood: %s", last.Data)
	natstest.Eventually(t, "those who have gone are noticed", func() bool { return running.Load() == 0 })
	// While the service waits for acknowledgements, other callers are served.
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := client.Call(ctx, "weather/big", nil); err != nil || len(got) != len(big) {
		t.Errorf("another caller: %d bytes, %v", len(got), err)
	}
	began := time.Now()
	stop()
	if took := time.Since(began); took >= 10*time.Second { // as long as an acknowledgement is waited for
		t.Errorf("stopping took %s", took)
	}
	if s, _ := slot.State(); s == "" {
		t.Error("no state")
	}
}
