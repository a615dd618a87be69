package natsconn

import "github.com/nats-io/nats.go"

// Move moves nc as its handler of lame duck mode does, and waits for it.
func Move(nc *nats.Conn) { TrafficOf(nc).move(nc, nc.ConnectedServerId()) }
