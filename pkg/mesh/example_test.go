package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// exampleServer is a NATS server in this process, for examples. stop ends it.
func exampleServer() (connect func(...nats.Option) *nats.Conn, stop func()) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir})
	if err != nil {
		panic(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		panic("the server does not come up")
	}
	connect = func(opts ...nats.Option) *nats.Conn {
		nc, err := nats.Connect("", append(opts, nats.InProcessServer(s))...)
		if err != nil {
			panic(err)
		}
		return nc
	}
	return connect, func() { s.Shutdown(); s.WaitForShutdown(); os.RemoveAll(dir) }
}

// exampleMesh serves box as the extension id, with its tools and hooks in the catalog as a registry would have them.
func exampleMesh(id string, box *mesh.Toolbox) (connect func(...nats.Option) *nats.Conn, stop func()) {
	connect, stopServer := exampleServer()
	nc := connect()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		if err := mesh.Serve(ctx, nc, mesh.Service{ID: id, Version: "1.0.0", Handler: box}); err != nil {
			panic(err)
		}
	})
	js, err := jetstream.New(nc)
	if err != nil {
		panic(err)
	}
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "ext_catalog",
		RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"}})
	if err != nil {
		panic(err)
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	var answer json.RawMessage
	for answer == nil { // it is there a moment after it was started
		answer, _ = client.CallExt(ctx, id, "initialize", nil)
	}
	h, err := mesh.ParseHandshake(answer)
	if err != nil {
		panic(err)
	}
	for i := range h.Tools {
		h.Tools[i].Name = mesh.ToolName(id, h.Tools[i].Own)
	}
	spec, err := json.Marshal(mesh.Spec{ID: id, Version: "1.0.0", Transport: "nats", Dialect: "ext",
		Subject: mesh.Prefix("ext").RPC(id), Features: []string{mesh.FeatureStream}, Tools: h.Tools, Hooks: h.Hooks})
	if err != nil {
		panic(err)
	}
	if _, err := kv.Put(ctx, "spec."+id, spec); err != nil {
		panic(err)
	}
	if _, err := kv.PutString(ctx, "state."+id, `{"state":"ready","available":true,"instances":[]}`); err != nil {
		panic(err)
	}
	return connect, func() { cancel(); wg.Wait(); nc.Close(); stopServer() }
}

func weatherBox() *mesh.Toolbox {
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "today", "The weather today.", func(_ context.Context, q struct {
		City string `json:"city"`
	}) (string, error) {
		return "sunny in " + q.City, nil
	})
	box.AddRaw("year", "The weather of a year.", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		// Who does not listen is not told; a message that is lost is made up for by the next.
		_ = r.Send("notifications/progress", json.RawMessage(`{"progress":180,"total":365}`))
		return json.RawMessage(`"mostly sunny"`), nil
	})
	box.AddHook("before_message", func(_ context.Context, event json.RawMessage) (mesh.HookResult, error) {
		return mesh.HookResult{Override: json.RawMessage(`{"text":"What is the weather in [redacted]?"}`)}, nil
	})
	return box
}

// An extension that is a service of its own: ten lines, two tools. Serve ends with its context.
func ExampleServe() {
	connect, stop := exampleServer()
	defer stop()
	nc := connect(nats.MaxReconnects(-1))
	defer nc.Close()

	type text struct {
		Text string `json:"text" jsonschema:"any text"`
	}
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "length", "Counts bytes.", func(_ context.Context, in text) (int, error) { return len(in.Text), nil })
	mesh.AddTool(box, "twice", "Says it twice.", func(_ context.Context, in text) (string, error) { return in.Text + in.Text, nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { // ends with cancel
		done <- mesh.Serve(ctx, nc, mesh.Service{ID: "text", Version: "1.0.0", Handler: box})
	}()

	client := mesh.NewClient(nc, mesh.ClientOptions{}) // without a catalog: by id and own name
	call := func(tool, args string) (json.RawMessage, error) {
		for {
			result, err := client.Call(ctx, tool, json.RawMessage(args))
			if !errors.Is(err, rpc.CodeUnavailable) { // it has only just been started
				return result, err
			}
		}
	}
	length, err := call("text/length", `{"text":"mesh"}`)
	fmt.Println(string(length), err)
	twice, err := call("text/twice", `{"text":"ha"}`)
	fmt.Println(string(twice), err)
	_, err = call("text/twice", `{"txet":"ha"}`)
	fmt.Println(errors.Is(err, rpc.CodeInvalidParams), err)

	cancel()
	fmt.Println(<-done) // when what was in flight is answered
	// Output:
	// 4 <nil>
	// "haha" <nil>
	// true twice: it needs text
	// <nil>
}

// Calling a tool by its registered name, and one that takes long.
func ExampleClient() {
	connect, stop := exampleMesh("weather", weatherBox())
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	nc := connect(nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	defer nc.Close()
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	go catalog.Run(ctx) // ends with ctx
	if err := catalog.WaitSynced(ctx); err != nil {
		fmt.Println(err)
		return
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile})

	result, err := client.Call(ctx, "ext_weather_today", json.RawMessage(`{"city":"Ghent"}`))
	fmt.Println(string(result), err)
	result, err = client.CallStream(ctx, "ext_weather_year", nil, func(n json.RawMessage) { fmt.Println(string(n)) })
	fmt.Println(string(result), err)

	_, err = client.Call(ctx, "ext_weather_today", json.RawMessage(`{"city":9000}`))
	fmt.Println(err)
	_, err = client.Call(ctx, "ext_weather_tody", nil)
	fmt.Println(err)
	// Output:
	// "sunny in Ghent" <nil>
	// {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":180,"total":365}}
	// "mostly sunny" <nil>
	// the arguments do not fit ext_weather_today: /city: got number, want string
	// no tool is named "ext_weather_tody"; the nearest are ext_weather_today
}

// A hook asks every extension that offers it.
func ExampleClient_Fire() {
	connect, stop := exampleMesh("weather", weatherBox())
	defer stop()
	nc := connect()
	defer nc.Close()
	ctx := context.Background()
	catalog, err := mesh.LoadCatalog(ctx, nc, mesh.CatalogOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog})
	fired, err := client.Fire(ctx, "before_message", json.RawMessage(`{"text":"What is the weather in Ghent?","from":"Ada"}`))
	fmt.Println(fired.Aborted, string(fired.Event), err)
	// Output:
	// false {"text":"What is the weather in [redacted]?","from":"Ada"} <nil>
}

// A connection that moves to another server, in order, when its own is about to go: one LameDuck for the connection
// and for all that is on it.
func ExampleLameDuck() {
	connect, stop := exampleMesh("weather", weatherBox())
	defer stop()
	var duck mesh.LameDuck
	nc := connect(nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), duck.Option())
	defer nc.Close()
	client := mesh.NewClient(nc, mesh.ClientOptions{LameDuck: &duck})
	result, err := client.Call(context.Background(), "weather/today", json.RawMessage(`{"city":"Ghent"}`))
	fmt.Println(string(result), err)
	// Output:
	// "sunny in Ghent" <nil>
}
