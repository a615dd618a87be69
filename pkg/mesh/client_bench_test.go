package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// BenchmarkClientCall compares Client.Call, with catalog, schema and guard, with a bare request to the same service,
// which answers at once with an answer as long as the question.
func BenchmarkClientCall(b *testing.B) {
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		b.Fatal("the server does not come up")
	}
	connect := func() *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	}
	for _, size := range []int{256, 16 << 10} {
		text := strings.Repeat("x", size)
		answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"text":"` + text + `"}}`)
		id := fmt.Sprintf("e%d", size)
		svc, err := micro.AddService(connect(), micro.Config{Name: id, Version: "1.0.0"})
		if err != nil {
			b.Fatal(err)
		}
		err = svc.AddEndpoint("rpc", micro.HandlerFunc(func(r micro.Request) { r.Respond(answer) }), micro.WithEndpointSubject("ext."+id+".rpc"))
		if err != nil {
			b.Fatal(err)
		}
		local := NewCatalog(nil, CatalogOptions{})
		spec := testSpec(id, "1.0.0", "echo")
		spec.Subject, spec.Dialect, spec.Features = "ext."+id+".rpc", "ext", []string{wire.FeatureStream}
		spec.Tools[0].InputSchema = json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)
		data, err := json.Marshal(spec)
		if err != nil {
			b.Fatal(err)
		}
		local.take([]change{newChange("spec."+id, catalog.Stamp{Seq: 1, Time: 1}, data),
			newChange("state."+id, catalog.Stamp{Seq: 2, Time: 1}, []byte(`{"state":"`+string(heartbeat.Ready)+`","available":true}`))}, time.Now())
		nc := connect()
		client := NewClient(nc, ClientOptions{Catalog: local})
		args := json.RawMessage(`{"text":"` + text + `"}`)
		request := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/echo","params":` + string(args) + `}`)
		b.Run(fmt.Sprintf("bare/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := nc.Request("ext."+id+".rpc", request, time.Second); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("client/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Call(context.Background(), "ext_"+id+"_echo", args); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
