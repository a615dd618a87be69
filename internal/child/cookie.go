package child

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
)

// Every process we start has a mark in its environment, and so have those it starts, wherever they go: the
// cookie of this process of ours, a dot, and the number of the life it belongs to. CI servers find what a
// job left behind the same way.
const (
	cookieVar = "EXTMESH_COOKIE"
	guardVar  = "EXTMESH_GUARD"
)

var (
	cookie = sync.OnceValue(rand.Text)
	lives  atomic.Uint64
)

func newMark() string { return fmt.Sprintf("%s.%d", cookie(), lives.Add(1)) }
