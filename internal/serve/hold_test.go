package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// gatherer blocks its first call until goOn is closed, and records which calls it holds and when it flushes.
type gatherer struct {
	goOn chan struct{}

	mu   sync.Mutex
	seen []string
}

func (g *gatherer) Handle(context.Context, *rpc.Request) (json.RawMessage, error) { return nil, nil }

func (g *gatherer) HandleAsync(r *rpc.Request, x *jsonrpc.Exchange) {
	if r.Method == "first" {
		<-g.goOn
	}
	g.note(fmt.Sprintf("%s %v", r.Method, x.Hold))
	x.Sink.Deliver(x, jsonrpc.NewReply(nil, nil))
}

func (g *gatherer) Flush() { g.note("flush") }

func (g *gatherer) note(s string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = append(g.seen, s)
}

// TestFloodIsWritten keeps requests coming that are refused, behind one that is held: it is written all the same.
func TestFloodIsWritten(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	g := &gatherer{goOn: make(chan struct{})}
	inst := serveOn(t, nc, g)
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(text string) {
		if err := nc.PublishRequest("ext.duck.rpc", answers.Subject, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	ask(`{"jsonrpc":"2.0","id":1,"method":"first"}`)
	natstest.Eventually(t, "it is being handled", func() bool { return inst.Counts().Calls == 1 })
	ask(`{"jsonrpc":"2.0","id":2,"method":"b"}`)
	for range 2 * maxInRow {
		ask("no JSON")
	}
	ask(`{"jsonrpc":"2.0","id":3,"method":"c"}`)
	if err := nc.Flush(); err != nil { // behind that they have arrived
		t.Fatal(err)
	}
	close(g.goOn)
	natstest.Eventually(t, "all are answered", func() bool { n, _, _ := answers.Pending(); return n == 2*maxInRow+3 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if want := []string{"first false", "b true", "flush", "c false"}; !slices.Equal(g.seen, want) {
		t.Errorf("seen %q, want %q", g.seen, want)
	}
}

// TestHoldsACrowd has calls arrive while one is handled: each but the last is held for the next ones. If the last one does
// not reach the handler, what was held is written as well.
func TestHoldsACrowd(t *testing.T) {
	for last, want := range map[string][]string{
		`{"jsonrpc":"2.0","id":4,"method":"d"}`: {"first false", "b true", "c true", "d false", "flush"},
		`no JSON`:                               {"first false", "b true", "c true", "flush"},
	} {
		nc := duckConn(t, duckServers(t, 1)[0])
		g := &gatherer{goOn: make(chan struct{})}
		inst := serveOn(t, nc, g)
		answers, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		ask := func(text string) {
			if err := nc.PublishRequest("ext.duck.rpc", answers.Subject, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		ask(`{"jsonrpc":"2.0","id":1,"method":"first"}`)
		natstest.Eventually(t, "it is being handled", func() bool { return inst.Counts().Calls == 1 })
		for _, text := range []string{`{"jsonrpc":"2.0","id":2,"method":"b"}`, `{"jsonrpc":"2.0","id":3,"method":"c"}`, last} {
			ask(text)
		}
		if err := nc.Flush(); err != nil { // behind that they have arrived
			t.Fatal(err)
		}
		close(g.goOn)
		natstest.Eventually(t, "all are answered", func() bool { n, _, _ := answers.Pending(); return n == 4 })
		natstest.Eventually(t, "nothing is held any more", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return slices.Equal(g.seen, want)
		})
	}
}
