package wire

import "time"

// The values of Ext-Frame.
const (
	FrameAccepted  = "accepted"
	FrameProgress  = "progress"
	FrameKeepalive = "keepalive"
	FrameChunk     = "chunk"
	FrameEnd       = "end"
)

// The times and sizes of streams (docs/protocol.md, "Streaming").
const (
	AcceptedAfter  = time.Second
	KeepaliveEvery = 2 * time.Second
	SuspectAfter   = 1300 * time.Millisecond // AcceptedAfter, a StreamTick, and the way
	SilenceLimit   = 5 * time.Second
	StreamTick     = 100 * time.Millisecond
	ChunkedOver    = 1 << 20   // bytes of an answer to a streaming caller, or what fits into one message
	ChunkSize      = 256 << 10 // what is under way delays the pings of a slow connection, and may be cut off by its server
	AckEvery       = 2         // chunks
	MaxUnacked     = 2         // lots under way: while one is acknowledged the next is sent
	AckWait        = 10 * time.Second
)

// Headroom is kept free of MaxPayload for the headers of a reply.
const Headroom = 1024
