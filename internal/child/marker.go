package child

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
)

// Every child process has a marker in its environment, which its descendants inherit, even in another session: a random
// prefix for this process, a dot, and the number of the run. CI servers find the processes that a job left behind the same
// way.
const (
	markerVar = "EXTMESH_COOKIE"
	guardVar  = "EXTMESH_GUARD"
)

var (
	markerPrefix = sync.OnceValue(rand.Text)
	runs         atomic.Uint64
)

func newMarker() string { return fmt.Sprintf("%s.%d", markerPrefix(), runs.Add(1)) }
