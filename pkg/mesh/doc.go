// Package mesh puts extensions on NATS and calls them: JSON-RPC from package rpc on the subjects of
// docs/protocol.md, and the catalog of all of it.
//
// There are two ends. Whoever offers tools joins the mesh with a [Slot], which announces, beats and says
// good-bye, and answers calls for as long as [Slot.Serve] runs: a micro service that exists exactly while
// calls can be taken, so that a dead extension is a missing responder and costs its callers a fraction of a
// millisecond instead of a time-out.
//
//	node := mesh.NewNode(nc, mesh.NodeOptions{})
//	go node.Run(ctx)
//	slot := node.Join(mesh.Announce{ID: "weather", Version: "1.0.0"})
//	go slot.Run(ctx)
//	err := slot.Serve(ctx, handler, mesh.ServeOptions{})
//
// Whoever calls tools has a [Client], which looks names up in a [Catalog]:
//
//	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
//	go catalog.Run(ctx)
//	client := mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog})
//	result, err := client.Call(ctx, "ext_weather_forecast", json.RawMessage(`{"city":"Ghent"}`))
//
// The catalog lends names and reasons and is never on the way of a call: with every registry dead, calls go
// on. Every subject is built by a method of [Prefix].
package mesh
