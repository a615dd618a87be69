package mesh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// A call: weather/today is the tool today of the extension weather.
func Example() {
	url, stop := startWeather()
	defer stop()

	nc, err := mesh.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	result, err := client.Call(context.Background(), "weather/today", json.RawMessage(`{"city":"Ghent"}`))
	fmt.Println(string(result), err)
	// Output:
	// "sunny in Ghent" <nil>
}

// A service: an extension with one tool. Serve returns after ctx has ended and the calls in flight are completed.
func ExampleServe() {
	url, stop := startNATS()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	go callOnce(url, "text", "tools/length", `{"text":"mesh"}`, cancel) // ends with its result

	nc, err := mesh.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	box := &mesh.Toolbox{Version: "1.0.0"}
	mesh.AddTool(box, "length", "Counts bytes.", func(_ context.Context, in struct {
		Text string `json:"text" jsonschema:"any text"`
	}) (int, error) {
		return len(in.Text), nil
	})
	fmt.Println(mesh.Serve(ctx, nc, mesh.Service{ID: "text", Version: "1.0.0", Handler: box}))
	// Output:
	// 4
	// <nil>
}

// With a catalog tools are called by their registered names, and arguments are checked before they are sent.
func ExampleClient() {
	url, stop := startWeather()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, err := mesh.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	go catalog.Run(ctx) // ends with ctx
	if err := catalog.WaitSynced(ctx); err != nil {
		log.Fatal(err)
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
	// the arguments do not fit ext_weather_today: city: got number, want string
	// no tool is named "ext_weather_tody"; the nearest are ext_weather_today
}

// A hook calls every extension that offers it, in order.
func ExampleClient_Fire() {
	url, stop := startWeather()
	defer stop()
	nc, err := mesh.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	ctx := context.Background()
	catalog, err := mesh.LoadCatalog(ctx, nc, mesh.CatalogOptions{})
	if err != nil {
		log.Fatal(err)
	}
	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog})
	fired, err := client.Fire(ctx, "before_message", json.RawMessage(`{"text":"What is the weather in Ghent?","from":"Ada"}`))
	fmt.Println(fired.Aborted, string(fired.Event), err)
	// Output:
	// false {"text":"What is the weather in [redacted]?","from":"Ada"} <nil>
}
