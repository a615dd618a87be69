package fleet

import (
	"encoding/json"
	"log/slog"
)

// Effect is something that the registry has to do because of an event. The results of requests are further events.
type Effect interface{ effect() }

// RequestAnnouncements requests announcements and inventories from the whole mesh.
type RequestAnnouncements struct{}

// RequestInventory requests the full inventory of one bridge.
type RequestInventory struct{ Bridge string }

// PingBridge pings a bridge. Its result is Fleet.Pinged.
type PingBridge struct {
	Bridge string
	bridge *bridge
}

// ConfirmGone calls Fleet.BridgeGone after everything has been processed that was sent to this replica before.
type ConfirmGone struct {
	Reason string
	bridge *bridge
}

// Ping pings an instance. Its result is Fleet.Probed; if there is no answer within 100 ms, Fleet.Unanswered comes first.
type Ping struct {
	Subject string
	Tries   int
	own     bool // only this instance answers on Subject
	probe   *probe
}

// Handshake sends initialize to an instance. Its result is Fleet.HandshakeDone.
type Handshake struct {
	ID, Subject, RPC string // RPC is the subject of the extension's calls
	Chunked          bool   // the instance can answer in chunks
	ext              *extension
	handshake        *handshake
}

// Refused counts a message or a part of one that was refused, and why.
type Refused struct {
	What, ID string
	Err      error
}

// Log writes a log line about the mesh. All replicas process the same events, so only one of them should write it.
type Log struct {
	Level   slog.Level
	Message string
	Args    []any
}

func (RequestAnnouncements) effect() {}
func (RequestInventory) effect()     {}
func (PingBridge) effect()           {}
func (ConfirmGone) effect()          {}
func (Ping) effect()                 {}
func (Handshake) effect()            {}
func (Refused) effect()              {}
func (Log) effect()                  {}

// PingResult is the result of the ping of a bridge.
type PingResult struct {
	Outcome Outcome
	Answer  json.RawMessage // the result, if there is one
}

// Outcome is how a ping ended.
type Outcome int

// The outcomes of a ping.
const (
	Unknown      Outcome = iota // it was not sent, or its result is not known
	Answered                    // by a result or an error
	NoResponders                // nothing is subscribed to the subject
	TimedOut
)
