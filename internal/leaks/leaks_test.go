package leaks_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestNoneWaits has a goroutine end behind goleak's own patience.
func TestNoneWaits(t *testing.T) {
	others := goleak.IgnoreCurrent()
	go func() { <-time.After(700 * time.Millisecond) }() // ends by itself
	leaks.None(t, others)
}
