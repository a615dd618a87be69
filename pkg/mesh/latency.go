package mesh

import (
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// LowLatency makes a connection for calls: whoever makes a lone call, or answers one, writes it, and what a crowd
// publishes is written together. nats.go by itself leaves both to a goroutine that has to be woken for each call. On
// Linux it is read and written with raw system calls, too. What that is worth is in docs/performance.md; the programs
// of extmesh use it.
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), mesh.LowLatency())
//
// It belongs behind the other options: where there is a dialer, or a server in this process, it changes nothing.
func LowLatency() nats.Option { return natsconn.Option() }
