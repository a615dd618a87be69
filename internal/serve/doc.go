// Package serve puts instances of extensions on NATS.
//
// A [Publisher] is shared by all instances of a program, and an [Instance] is one instance of an extension. An instance keeps
// its identity when the process of the extension restarts. Whenever that process can handle calls, [Instance.Serve]
// subscribes a micro service for it, so that calls of an extension that does not run fail immediately with "no responders"
// instead of a timeout. Bridges use these types directly, mesh.Serve uses them for a service with one instance.
//
// Layer: mesh, below pkg/mesh (see layers_test.go).
package serve
