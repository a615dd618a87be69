// Package heartbeat has the messages with which instances report their state to the registry, and the states themselves.
//
// An instance sends a [Message] once per interval, and immediately when its state changes (docs/protocol.md, "Heartbeat").
// The registry marks an instance [Lost] when its heartbeats stop. pkg/mesh sends the heartbeats of a service in Go.
//
// Layer: pure, below everything (see layers_test.go).
package heartbeat
