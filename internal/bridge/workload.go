package bridge

import (
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// workload is one extension, or one member of it, as this bridge runs it: everything that was read, checked and expanded
// before the first process starts.
type workload struct {
	path       string           // of its manifest
	root       os.FileInfo      // of its directory; nil if it cannot be read
	announce   wire.Announce    // without the instance
	dialect    manifest.Dialect // required by the manifest: auto, ext or mcp
	declared   manifest.Capabilities
	transport  manifest.Transport  // with placeholders replaced
	spec       child.Spec          // of a stdio child; without the callbacks
	grace      time.Duration       // between the request to stop and SIGTERM
	redact     func(string) string // removes known secrets from a text; nil: no secrets are known
	limits     limits
	policy     supervise.Policy
	replicas   int
	replicaSet *replicaSet
	missing    gate.Result // requirements that this host does not meet
	files      *fileTexts  // nil: its manifest refers to no files
	gated      string      // why it is not started; "" if it is

	httpAllow []netip.Prefix // addresses refused by default to which it may connect
}

// fileTexts is what a workload needs because its manifest refers to files, whose content can change.
type fileTexts struct {
	again   func() (*workload, error)             // prepares the workload with their present content
	absent  error                                 // one of them does not exist yet: another program may be about to write it
	secrets []atomic.Pointer[func(string) string] // by replica, redact of its run, with the content that it has
}

// present returns the workload with the present content of its files.
func (f *fileTexts) present() (*workload, error) {
	now, err := f.again()
	if err == nil {
		err = now.files.absent
	}
	return now, err
}

// limits are the limits for the calls and handshakes of a workload.
type limits struct {
	start       config.StartLimit
	call        time.Duration
	maxCall     time.Duration
	maxInflight int
	maxLine     int
	maxResult   int
	drain       time.Duration // for calls in flight when it is stopped
	hang        time.Duration // 0: never
}

func (w *workload) id() string { return w.announce.ID }

// hasEnded reports whether err, of a request, means that the child has ended. Over HTTP it means that one request was cut
// off. An error of the extension itself can have the same code, -32000, which many servers use for everything.
func (w *workload) hasEnded(err error) bool {
	return w.transport.Type != manifest.HTTP && !isOwnError(err) && rpc.AsError(err).Code == rpc.CodeExited
}
