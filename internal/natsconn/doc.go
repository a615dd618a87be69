// Package natsconn provides connections to NATS with a low latency for calls.
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1), natsconn.Option())
//
// nats.go writes all published messages on a separate goroutine, its flusher. That is efficient for many concurrent
// messages, which are then written together, but slow for a single call: a goroutine must be scheduled before the
// write, for which Go wakes a thread. Here the publishing goroutine writes a message itself as long as messages and
// replies alternate. While they do not, published messages are buffered, and written together by a goroutine that
// first yields to the others.
//
// On Linux the connection is also read and written with raw system calls (package rawio). Over a WebSocket, whose
// messages are written in two parts, everything is buffered.
//
// docs/decisions/0011-raw-io.md and 0012-connections.md have the reasons and the measurements.
package natsconn
