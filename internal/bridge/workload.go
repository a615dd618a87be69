package bridge

import (
	"net/netip"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// unit is one extension, or one member of it, as this bridge runs it: everything that was read, checked and
// expanded before the first spawn.
type workload struct {
	path       string           // of its manifest
	announce   mesh.Announce    // without an instance
	dialect    manifest.Dialect // asked for: auto, ext or mcp
	declared   manifest.Capabilities
	transport  manifest.Transport  // with its placeholders replaced
	spec       child.Spec          // of a stdio child; without the callbacks
	grace      time.Duration       // from being told to stop to SIGTERM
	redact     func(string) string // takes known secrets out of a text; nil: there are none
	limits     limits
	policy     supervise.Policy
	replicas   int
	replicaSet *replicaSet
	missing    gate.Result // what it requires and this host lacks
	gated      string      // why it is not started; "" when it is

	httpAllow []netip.Prefix // refused addresses to which it may be connected nevertheless
}

// limits bound the calls and the handshakes of a unit.
type limits struct {
	handshake   time.Duration
	call        time.Duration
	maxCall     time.Duration
	maxInflight int
	maxLine     int
	maxResult   int
	drain       time.Duration // for calls in flight when it is stopped
	hang        time.Duration // 0: never
}

func (w *workload) id() string { return w.announce.ID }
