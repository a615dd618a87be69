// Package natsconn makes connections to NATS that carry calls quickly.
//
//	nc, err := nats.Connect(url, natsconn.Option())
//	calls := natsconn.CallsOf(nc)
//
//	calls.Begin() // around each call, on either side of it
//	defer calls.End()
//
// nats.go leaves all that is published to a goroutine of its own, its flusher. That is right for a crowd, whose messages
// then leave together, and wrong for a lone call: before it is written, a goroutine has to be scheduled, for which Go
// wakes a thread. Here a lone call is written by whoever makes it, and so is its answer. While more than one is
// under way, what is published is gathered, and written together by a goroutine that lets everybody else go first.
// Which of the two it is, only those who make calls can know: they say so to Calls.
//
// On Linux the connection is also read and written with raw system calls (package rawio).
//
// docs/decisions/0011-raw-io.md and 0012-connections.md have the reasons and the figures.
package natsconn
