package wire

import (
	"context"
	"encoding/json"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// traceKey is the context key of a traceparent.
type traceKey struct{}

// WithTraceparent returns a context that adds a traceparent (W3C Trace Context) to the calls made with it, such as
// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01. The context of a handler already has the traceparent of its call.
// A malformed one is dropped, as the standard requires: a trace is never a reason for a call to fail.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	if !validTraceparent(traceparent) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// Traceparent returns the traceparent of calls made with ctx, or "".
func Traceparent(ctx context.Context) string {
	t, _ := ctx.Value(traceKey{}).(string)
	return t
}

// WithTrace returns the params of an MCP request with _meta.traceparent, for a child that cannot see headers. If the caller
// has set one, that is kept.
func WithTrace(params json.RawMessage, traceparent string) json.RawMessage {
	if !validTraceparent(traceparent) {
		return params
	}
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	meta, ok := MemberOf(params, "_meta")
	if !ok || meta[0] != '{' {
		meta = []byte("{}")
	}
	if _, ok := jsonrpc.Member(meta, "traceparent"); ok {
		return params
	}
	return SetMember(params, "_meta", SetMember(meta, "traceparent", Quote(traceparent)))
}

// validTraceparent reports whether s has the form version-trace-parent-flags. Later versions may have more after that.
func validTraceparent(s string) bool {
	const form = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(s) < len(form) || len(s) > 128 || len(s) > len(form) && (s[:2] == "00" || s[len(form)] != '-') {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case i < len(form) && form[i] == '-':
			if c != '-' {
				return false
			}
		case i < len(form) && !('0' <= c && c <= '9' || 'a' <= c && c <= 'f'), c <= ' ' || c > '~':
			return false
		}
	}
	return s[3:35] != form[3:35] && s[36:52] != form[36:52] // all zeros: invalid
}
