// Package natsconn makes connections to NATS that carry calls quickly.
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1), natsconn.Option())
//
// nats.go leaves all that is published to a goroutine of its own, its flusher. That is right for a crowd, whose messages
// then leave together, and wrong for a lone call: before it is written, a goroutine has to be scheduled, for which Go
// wakes a thread. Here a message is written by whoever publishes it as long as messages and answers take turns. While
// they do not, what is published is gathered, and written together by a goroutine that lets everybody else go first.
//
// On Linux the connection is also read and written with raw system calls (package rawio). Over a WebSocket, whose
// messages are written in two parts, all is gathered.
//
// docs/decisions/0011-raw-io.md and 0012-connections.md have the reasons and the figures.
package natsconn
