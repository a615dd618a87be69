// Package mesh puts extensions on NATS and calls their tools: JSON-RPC of package rpc on the subjects of docs/protocol.md,
// and the catalog of all extensions.
//
// # Calling a tool
//
//	nc, err := mesh.Connect(url)
//	if err != nil {
//		return err
//	}
//	defer nc.Close()
//	client := mesh.NewClient(nc, mesh.ClientOptions{})
//	result, err := client.Call(ctx, "weather/today", json.RawMessage(`{"city":"Ghent"}`))
//
// # Offering a tool
//
// A [Toolbox] answers the requests for the tools that are added to it, with schemas derived from Go structs. [Serve] puts it
// on the mesh: it announces it, sends heartbeats and handles calls concurrently until ctx ends; then it completes the calls
// in flight.
//
//	nc, err := mesh.Connect(url)
//	if err != nil {
//		return err
//	}
//	defer nc.Close()
//	box := &mesh.Toolbox{Version: "1.0.0"}
//	mesh.AddTool(box, "today", "The weather today.", func(ctx context.Context, in struct {
//		City string `json:"city" jsonschema:"a city's name"`
//	}) (string, error) {
//		return "sunny in " + in.City, nil
//	})
//	return mesh.Serve(ctx, nc, mesh.Service{ID: "weather", Version: "1.0.0", Handler: box})
//
// With stdio.Serve on standard input and output, the same Toolbox is the child of a bridge.
//
// # The catalog
//
// A [Catalog] is a local copy of the mesh's catalog, which is updated within milliseconds. With it, a [Client] finds tools by
// their registered names, checks arguments before it sends them, and explains why a tool is not available.
//
//	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
//	go catalog.Run(ctx)
//	if err := catalog.WaitSynced(ctx); err != nil {
//		return err
//	}
//	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile})
//	result, err := client.Call(ctx, "ext_weather_today", json.RawMessage(`{"city":"Ghent"}`))
//
// Calls do not pass through the registry or the catalog: without any registry they continue. [Client.CallStream] passes on
// the progress of a long call, [Client.Fire] calls all extensions that offer a hook.
//
// # The connection
//
// [Connect] is nats.Connect with the options that callers and services should have. The package never closes a connection.
// Where NATS has permissions, pass the user's inbox prefix with nats.CustomInboxPrefix.
//
// # Errors
//
// Errors of a call are [rpc.Error] values: the extension's own, unchanged, or the mesh's with [rpc.Details], which state
// whether the tool may have run. errors.Is(err, rpc.CodeUnavailable) works across the network.
package mesh
