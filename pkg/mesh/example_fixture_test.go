package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// startWeather runs a NATS server and the extension weather, which is in the catalog as a registry would write it.
func startWeather() (url string, stop func()) {
	t, stopServer := natstest.Example()
	srv := natstest.Start(t, &server.Options{Port: -1, JetStream: true})
	nc := srv.Connect()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		if err := mesh.Serve(ctx, nc, mesh.Service{ID: "weather", Version: "1.0.0", Handler: weatherBox()}); err != nil {
			panic(err)
		}
	})
	kv := must(natstest.JetStream(t, nc).CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "ext_catalog",
		RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"}}))
	h := must(wire.ParseHandshake(whenServed(nc, "weather", "initialize", nil)))
	for i := range h.Tools {
		h.Tools[i].Name = wire.ToolName("weather", h.Tools[i].Own)
	}
	spec := must(json.Marshal(wire.Spec{ID: "weather", Version: "1.0.0", Transport: "nats", Dialect: "ext",
		Subject: wire.Prefix("ext").RPC("weather"), Features: []string{wire.FeatureStream}, Tools: h.Tools, Hooks: h.Hooks}))
	must(kv.Put(ctx, "spec.weather", spec))
	must(kv.PutString(ctx, "state.weather", `{"state":"ready","available":true,"instances":[]}`))
	return srv.ClientURL(), func() { cancel(); wg.Wait(); stopServer() }
}

func startNATS() (url string, stop func()) {
	t, stop := natstest.Example()
	return natstest.Start(t, &server.Options{Port: -1}).ClientURL(), stop
}

// weatherBox is an extension with two tools and a hook.
func weatherBox() *mesh.Toolbox {
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "today", "The weather today.", func(_ context.Context, in struct {
		City string `json:"city"`
	}) (string, error) {
		return "sunny in " + in.City, nil
	})
	box.AddRaw("year", "The weather of a year.", nil, func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		// Send does nothing if the caller does not accept progress. The next notification makes up for one that is lost.
		_ = r.Send("notifications/progress", json.RawMessage(`{"progress":180,"total":365}`))
		return json.RawMessage(`"mostly sunny"`), nil
	})
	box.AddHook("before_message", func(_ context.Context, event json.RawMessage) (mesh.HookResult, error) {
		return mesh.HookResult{Override: json.RawMessage(`{"text":"What is the weather in [redacted]?"}`)}, nil
	})
	return box
}

// whenServed calls an extension as soon as it is subscribed.
func whenServed(nc *nats.Conn, id, method string, params json.RawMessage) json.RawMessage {
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	for {
		result, err := client.CallExt(context.Background(), id, method, params)
		if !errors.Is(err, rpc.CodeUnavailable) {
			return must(result, err)
		}
	}
}

// callOnce calls an extension as soon as it is subscribed, prints the result, and then calls done.
func callOnce(url, id, method, params string, done func()) {
	nc := must(mesh.Connect(url))
	defer nc.Close()
	fmt.Println(string(whenServed(nc, id, method, json.RawMessage(params))))
	done()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
