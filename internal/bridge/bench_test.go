package bridge

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/breaker"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// instantLink is a child that responds immediately, in the caller's goroutine, so that only the bridge's cost is measured.
type instantLink struct{ rpc.Caller }

func (instantLink) Start(x *jsonrpc.Exchange) {
	r, err := jsonrpc.ParseReply([]byte(`{"jsonrpc":"2.0","id":123,"result":{"text":"hello"}}`))
	if err != nil {
		panic(err)
	}
	x.Sink.Deliver(x, r)
}
func (instantLink) Cancel(*jsonrpc.Exchange) (uint64, bool) { return 0, false }
func (instantLink) Notify(string, json.RawMessage) error    { return nil }
func (instantLink) Run(ctx context.Context) error           { <-ctx.Done(); return nil }

// inProcess starts a NATS server in this process. connect returns a new connection, which is closed at the end of tb.
func inProcess(tb testing.TB) (connect func() *nats.Conn) {
	tb.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		tb.Fatal(err)
	}
	s.Start()
	tb.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		tb.Fatal("the server does not start")
	}
	return func() *nats.Conn {
		tb.Helper()
		nc, err := nats.Connect("", nats.InProcessServer(s), nats.Timeout(time.Minute))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(nc.Close)
		return nc
	}
}

// BenchmarkServe compares a call through the bridge, without a child, with a call to a plain micro endpoint. Both have the
// same client, so any difference in allocations is caused by the service.
func BenchmarkServe(b *testing.B) {
	connect := inProcess(b)
	bare, err := micro.AddService(connect(), micro.Config{Name: "bare", Version: "1.0.0"})
	if err != nil {
		b.Fatal(err)
	}
	err = bare.AddEndpoint("echo", micro.HandlerFunc(func(r micro.Request) { r.Respond(r.Data()) }), micro.WithEndpointSubject("ext.bare.rpc"))
	if err != nil {
		b.Fatal(err)
	}
	f := &forwarder{conn: instantLink{}, breaker: breaker.New("b", breaker.Settings{}), relist: newSignal(), check: dueSignal{signal: newSignal()}, limits: limits{maxResult: 64 << 20}}
	f.handshake.Store(&handshake{dialect: manifest.Ext, names: map[string]bool{"echo": true}})
	node := serve.NewPublisher(connect(), serve.PublisherOptions{})
	slot := node.Join(wire.Announce{ID: "full", Version: "1.0.0"})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { slot.Serve(ctx, f, serve.Options{}) }) // ends with ctx
	defer wg.Wait()
	defer cancel()
	nc := connect()
	body := jsonrpc.AppendRequest(nil, []byte("1"), "tools/echo", []byte(`{"text":"`+strings.Repeat("x", 240)+`"}`))
	headers := nats.Header{"Ext-Timeout": {"30000"}, "Ext-Call-Id": {"_INBOX.x.y"}, "Ext-Stream": {"1"}}
	for _, subject := range []string{"ext.bare.rpc", "ext.full.rpc"} {
		for name, h := range map[string]nats.Header{"headers=0": nil, "headers=3": headers} {
			b.Run(subject+"/"+name, func(b *testing.B) {
				for {
					if _, err := nc.Request(subject, body, time.Second); err == nil {
						break
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := nc.RequestMsg(&nats.Msg{Subject: subject, Header: h, Data: body}, time.Second); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
