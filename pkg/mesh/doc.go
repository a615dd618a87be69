// Package mesh puts extensions on NATS and calls them: JSON-RPC from package rpc on the subjects of
// docs/protocol.md, and the catalog of all of it.
//
// # Being an extension
//
// A [Toolbox] answers for the tools that are added to it, with schemas derived from Go structs, and [Serve] puts
// it on the mesh: it announces, beats, answers calls side by side, and stops without losing one.
//
//	type question struct {
//		City string `json:"city" jsonschema:"a city's name"`
//	}
//	box := &mesh.Toolbox{Version: "1.0.0"}
//	mesh.AddTool(box, "today", "The weather today.", func(ctx context.Context, q question) (string, error) {
//		return "sunny in " + q.City, nil
//	})
//	err := mesh.Serve(ctx, nc, mesh.Service{ID: "weather", Version: "1.0.0", Handler: box})
//
// The same Toolbox answers on standard input and output with rpc.Serve, as the child of a bridge.
//
// # Calling
//
// A [Client] looks names up in a [Catalog], a copy of the mesh's that is right within milliseconds, and sends the
// call straight to whoever answers it.
//
//	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
//	go catalog.Run(ctx)
//	if err := catalog.WaitSynced(ctx); err != nil {
//		return err
//	}
//	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile})
//	result, err := client.Call(ctx, "ext_weather_today", json.RawMessage(`{"city":"Ghent"}`))
//
// The catalog lends names and reasons and is never on the way of a call: with every registry dead, calls go on.
// A Client without one calls by id and own name, "weather/today". [Client.CallStream] tells how far a long call is,
// [Client.Fire] asks everybody who offers a hook.
//
// # The connection
//
// It is the caller's own, and never closed here. One that calls should be made with nats.ReconnectBufSize(-1), or
// requests are kept while NATS is away, and run when nobody waits for them any more; any should be made with
// nats.MaxReconnects(-1), with an inbox prefix of its own where there are permissions, and with a [LameDuck], which
// moves it in order when its server is about to go. With [LowLatency] calls over it are quicker, at both ends.
//
// # Errors
//
// Those of a call are [rpc.Error] values: the extension's own, as it was, or the mesh's with [rpc.Details], which say
// whether the tool may have run. errors.Is(err, rpc.CodeUnavailable) and the like work across the wire.
//
// # Below
//
// Serve is a [Node], which is a program's one reader for all of its extensions, and a [Slot], which is one extension's
// place: it announces and beats through the lives of what runs in it, and each ready life is one [Slot.Serve], a micro
// service that exists exactly while calls can be taken. So a dead extension is a missing responder, and costs its
// callers a fraction of a millisecond instead of a time-out. Bridges use these; a service of its own does not need to.
// Every subject is built by a method of [Prefix].
package mesh
