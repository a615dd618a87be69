package mesh

import (
	"context"

	"github.com/extmesh/extmesh/internal/wire"
)

// The documents of the catalog. Their members are the members of the JSON documents in docs/protocol.md, "Catalog".
type (
	Spec          = wire.Spec          // what an extension offers
	StateDoc      = wire.StateDoc      // the state of an extension and of its instances
	InstanceState = wire.InstanceState // one instance in a StateDoc
	Host          = wire.Host          // what a bridge found, and what it could not start
	Skill         = wire.Skill         // one skill
	Diagnostic    = wire.Diagnostic    // one finding about an extension or a skill
	Tool          = wire.Tool          // one tool in a Spec
)

// WithTraceparent returns a context that adds a traceparent (W3C Trace Context) to the calls made with it, such as
// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01. The context of a handler already has the traceparent of its call.
// A malformed one is dropped: a trace is never a reason for a call to fail.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return wire.WithTraceparent(ctx, traceparent)
}
