package leaks_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestNoneWaits leaves a goroutine that ends after goleak's own timeout.
func TestNoneWaits(t *testing.T) {
	others := goleak.IgnoreCurrent()
	go func() { <-time.After(700 * time.Millisecond) }() // ends after 700 ms
	leaks.None(t, others)
}
