package mcp

import (
	"slices"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// logLevels are the levels of log messages, the least severe first.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// LogLevel is a level of log messages: 1 is debug, and 0 is none.
type LogLevel int

// ParseLogLevel returns the level of a JSON string, or 0.
func ParseLogLevel(raw []byte) LogLevel {
	name, ok := unquote(raw)
	if !ok {
		return 0
	}
	return LogLevel(slices.Index(logLevels, name) + 1)
}

func (l LogLevel) String() string { return logLevels[l-1] }

// Admits reports whether a log message, by the params of its notification, is at least as severe as the level.
func (l LogLevel) Admits(message []byte) bool {
	at, ok := jsonrpc.Member(message, "level")
	return l > 0 && ok && ParseLogLevel(at.In(message)) >= l
}

// RequestedLevel is the level of the log messages that a request wants while it is handled, or 0: _meta has it.
func RequestedLevel(params []byte) LogLevel {
	meta, ok := jsonrpc.Member(params, "_meta")
	if !ok {
		return 0
	}
	level, ok := jsonrpc.Member(meta.In(params), MetaLogLevel)
	if !ok {
		return 0
	}
	return ParseLogLevel(level.In(meta.In(params)))
}
